"""Release cloudgpu: check the preconditions, build, check the contents, test a clean installation, and tag."""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
CARRIED = (
    "cloudgpu/py.typed",
    "cloudgpu/infra/Pulumi.yaml",
    "cloudgpu/infra/gpu_cluster/__init__.py",
    "cloudgpu/recipes/quickstart/recipe.yaml",
    "cloudgpu/recipes/quickstart/train.py",
    "cloudgpu/images/README.md",
    "cloudgpu/catalog/data/instance_types.json",
)
STRANGE = re.compile(r"(^|/)(__pycache__|tests?|\.git|\.venv|\.cache|\.\w+_cache)/|\.(pyc|orig|rej|log|swp)$")
LARGEST_WHEEL = 3 << 20
"""Maximum size in bytes: twice the current size. A dataset or cache that is included by mistake would exceed it."""
_UNRELEASED = "## [Unreleased]"


class StopError(Exception):
    """The release cannot continue."""


def released(changelog: str, version: str, day: str) -> str:
    """Return the changelog with its unreleased entries moved to a section for the version."""
    if f"## [{version}]" in changelog:
        message = f"CHANGELOG.md already has a section for {version}"
        raise StopError(message)
    before, heading, rest = changelog.partition(_UNRELEASED)
    notes, further, older = rest.partition("\n## [")
    if not heading or not notes.strip():
        message = "CHANGELOG.md has no entries under [Unreleased]"
        raise StopError(message)
    return f"{before}{_UNRELEASED}\n\n## [{version}] - {day}\n\n{notes.strip()}\n{further}{older}"


def changelog_problem(changelog: str, version: str) -> str:
    """Return the problem with the version's section, or an empty string if there is none."""
    section = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}\n(.*?)(?=^## \[|\Z)", changelog, re.M | re.S
    )
    if section is None:
        return f"CHANGELOG.md has no section `## [{version}] - DATE`; to create it, run scripts/release --changelog"
    return "" if section[1].strip() else f"the section of {version} in CHANGELOG.md is empty"


def content_problems(names: Iterable[str], size: int) -> list[str]:
    """Return the problems with a wheel that has these files and this size."""
    inside = set(names)
    wrong = [f"the wheel does not contain {path}" for path in CARRIED if path not in inside]
    if not any(re.fullmatch(r"cloudgpu-[^/]+\.dist-info/licenses/LICENSE", path) for path in inside):
        wrong.append("the wheel does not contain its LICENSE")
    wrong += [
        f"the wheel contains {path}, which must not be released" for path in sorted(inside) if STRANGE.search(path)
    ]
    top = {path.split("/")[0] for path in inside if ".dist-info/" not in path}
    wrong += [f"the wheel installs {path} outside of cloudgpu" for path in sorted(top - {"cloudgpu"})]
    if size > LARGEST_WHEEL:
        wrong.append(f"the wheel is {size:,} bytes, more than the limit of {LARGEST_WHEEL:,}")
    return wrong


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = " ".join(str(word) for word in command)
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        message = f"{shown} exited with status {done.returncode}:\n{last}"
        raise StopError(message)
    return done.stdout


def say(text: str) -> None:
    """Report progress."""
    print(f"release: {text}", flush=True)


def preconditions(version: str) -> list[str]:
    """Return the problems that prevent a release."""
    wrong = []
    if run("git", "status", "--porcelain"):
        wrong.append("the working tree is not clean")
    branch = run("git", "rev-parse", "--abbrev-ref", "HEAD").strip()
    if branch != "main":
        wrong.append(f"the branch is {branch}, not main")
    if run("git", "tag", "--list", f"v{version}"):
        wrong.append(f"the tag v{version} already exists")
    problem = changelog_problem((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    return [*wrong, *([problem] if problem else [])]


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist from the committed files, twice, to show that the builds are reproducible."""
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    digests = []
    for number in ("1", "2"):
        source, made = folder / f"source{number}", folder / f"dist{number}"
        source.mkdir()
        archive = folder / f"{number}.tar"
        run("git", "archive", "--output", archive, "HEAD")
        with tarfile.open(archive) as opened:
            opened.extractall(source, filter="data")
        run(sys.executable, "-m", "hatchling", "build", "-d", made, cwd=source, SOURCE_DATE_EPOCH=epoch)
        digests.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(made.iterdir())})
    if digests[0] != digests[1]:
        message = f"two builds of the same commit differ: {digests}"
        raise StopError(message)
    (wheel,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")
    for path in (wheel, sdist):
        say(f"{path.name}: {path.stat().st_size:,} bytes, sha256 {digests[0][path.name]}")
    return wheel, sdist


def prove(wheel: Path, folder: Path, version: str, *, quickstart: bool) -> None:
    """Install the wheel outside of the checkout and run some commands with it."""
    home, venv = folder / "work", folder / "venv"
    home.mkdir()
    uv = Path(sys.executable).with_name("uv")
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    started = time.monotonic()
    run(uv, "pip", "install", "--quiet", "--python", venv / "bin" / "python", wheel, cwd=home, VIRTUAL_ENV="")
    files = [path for path in (venv / "lib").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) >> 20
    say(f"installed in {time.monotonic() - started:.0f} s: {len(files):,} files, {size} MiB, without bytecode")

    def cloudgpu(*arguments: str) -> str:
        say("cloudgpu " + " ".join(arguments))
        return run(
            venv / "bin" / "cloudgpu",
            *arguments,
            cwd=home,
            CLOUDGPU_HOME=str(folder / "home"),
            PYTHONPATH="",
            VIRTUAL_ENV="",
        )

    if cloudgpu("--version").split() != ["cloudgpu", version]:
        message = f"cloudgpu --version does not print {version}"
        raise StopError(message)
    cloudgpu("--help")
    cloudgpu("recipe", "check", "quickstart")
    cloudgpu("plan", "quickstart", "--on", "rehearsal", "--offline", "--json")
    if quickstart:
        started = time.monotonic()
        try:
            cloudgpu("train", "quickstart", "--on", "rehearsal", "--yes", "--json")
            say(f"the quickstart took {time.monotonic() - started:.0f} s")
        finally:
            cloudgpu("rehearsal", "stop")


def keep(*files: Path) -> None:
    """Copy the tested files to `dist/`, so that exactly these files are published."""
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    for path in files:
        shutil.copyfile(path, dist / path.name)
        say(f"dist/{path.name}")


def move_changelog(version: str) -> None:
    """Move the unreleased entries of CHANGELOG.md to a section for the version."""
    path = ROOT / "CHANGELOG.md"
    day = datetime.now(UTC).date().isoformat()
    path.write_text(released(path.read_text(encoding="utf-8"), version, day), encoding="utf-8")
    say(f"CHANGELOG.md has a section for {version}; review it and commit it")


def release(options: argparse.Namespace) -> int:
    """Run all steps and return the exit status."""
    namespace: dict[str, str] = {}
    exec((ROOT / "cloudgpu/version.py").read_text(encoding="utf-8"), namespace)
    version = options.version or namespace["__version__"]
    if version != namespace["__version__"] or not VERSION.fullmatch(version):
        message = f"the version in cloudgpu/version.py is {namespace['__version__']}, not {version}"
        raise StopError(message)
    if options.changelog:
        move_changelog(version)
        return 0
    wrong = preconditions(version)
    if wrong and not options.dry_run:
        raise StopError("; ".join(wrong))
    say("scripts/check")
    run(ROOT / "scripts" / "check")
    with tempfile.TemporaryDirectory(prefix="cloudgpu-release-") as made:
        folder = Path(made)
        wheel, sdist = build(folder)
        with zipfile.ZipFile(wheel) as archive:
            wheel_problems = content_problems(archive.namelist(), wheel.stat().st_size)
        if wheel_problems:
            raise StopError("\n".join(wheel_problems))
        prove(wheel, folder, version, quickstart=options.quickstart)
        keep(wheel, sdist)
    for problem in wrong:
        say(f"this would prevent the release: {problem}")
    if options.dry_run:
        say(f"dry run: v{version} was not tagged")
        return int(bool(wrong))
    run("git", "tag", "--annotate", f"v{version}", "--message", f"cloudgpu {version}")
    say(f"tagged v{version}; publish it with `git push origin v{version}` and the two files of dist/")
    return 0


def main(argv: Sequence[str]) -> int:
    """Parse the options, run the release and return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/release")
    parser.add_argument("version", nargs="?", default="")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--changelog", action="store_true")
    parser.add_argument("--no-quickstart", dest="quickstart", action="store_false")
    try:
        return release(parser.parse_args(argv))
    except StopError as stop:
        print(f"release: {stop}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
