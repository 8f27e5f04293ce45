"""Repository rules that no other tool checks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cloudgpu import errors

ROOT = Path(__file__).parents[3]
HEAVY = ("asyncssh", "boto3", "botocore", "moto", "paramiko", "pulumi", "pulumi_aws", "sqlalchemy", "werkzeug")
LONGEST_FILE = {"cloudgpu": 400, "infra": 400, "tests": 500}
# Absolute paths of a developer's machine and addresses of package indexes; concatenated, so that this file does not
# contain what it forbids.
FORBIDDEN = re.compile(
    r"(?<![\w.\]})*-])/"
    + "(?:work/(?:main|shared)|home/(?!ubuntu|me\\b|ann\\b)\\w+|Users)/"
    + r"|py"
    + r"pi\.org|files\.python"
    + "hosted|/opt/"
    + "wheels"
)


def tracked() -> list[Path]:
    """Return the files of the checkout, including new ones; without git, all files in the directory."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
        return [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not path.relative_to(ROOT).parts[0].startswith(".")]


def texts(*suffixes: str) -> list[tuple[str, str]]:
    found = []
    for path in tracked():
        if not suffixes or path.suffix in suffixes:
            data = path.read_bytes()
            if b"\0" not in data:
                found.append((str(path.relative_to(ROOT)), data.decode("utf-8")))
    return found


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_no_heavy_packages(option: str):
    program = f"""
import sys
from cloudgpu.cli.main import main
code = main([{option!r}])
print("LOADED", *sorted(set(sys.modules) & set({HEAVY!r})), file=sys.stderr)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "cloudgpu" in done.stdout
    assert done.stderr.splitlines()[-1].split() == ["LOADED"]


def test_no_file_exceeds_the_line_limit():
    lines = {name: text.count("\n") for name, text in texts(".py")}
    long = {name: found for name, found in lines.items() if found > LONGEST_FILE.get(name.split("/")[0], 400)}
    assert long == {}, "a file this long has two subjects"


def test_unit_test_folders_mirror_the_source_folders():
    sources = {path.stem for path in (ROOT / "cloudgpu").iterdir()} | {path.name for path in ROOT.iterdir()}
    sources |= {path.name for path in (ROOT / "scripts").iterdir() if path.is_dir()}
    about_the_repository = {"dependencies", "fuzz", "layout"}
    folders = {path.name for path in (ROOT / "tests" / "unit").iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders <= sources | about_the_repository


def test_no_file_contains_machine_paths_or_index_addresses():
    found = [(name, hit.group()) for name, text in texts() for hit in FORBIDDEN.finditer(text)]
    assert found == []


def test_files_referenced_by_documents_exist():
    """Paths in backticks, such as `cloudgpu/paths.py`, must exist unless they contain placeholders."""
    rooms = ("cloudgpu/", "infra/", "scripts/", "tests/", "benchmarks/", "docs/", ".ci/")
    missing = []
    for name, text in texts(".md"):
        for target in re.findall(r"`([\w./-]+)`", text):
            if target.startswith(rooms) and not (ROOT / target).exists():
                missing.append((name, target))
    assert missing == []


def error_classes() -> list[type[errors.CloudGpuError]]:
    classes = [one for one in vars(errors).values() if isinstance(one, type)]
    return [one for one in classes if issubclass(one, errors.CloudGpuError)]


def test_every_error_class_is_documented_with_its_exit_code():
    table = (ROOT / "docs/reference/exit-codes.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\d+) \| `(\w+)` \|", table, re.MULTILINE)
    documented = {name: int(code) for code, name in lines}
    assert documented == {one.__name__: one.exit_code for one in error_classes()}


def test_every_error_class_keeps_its_message_and_hint():
    for one in error_classes():
        raised = one("what happened", hint="what to do")
        assert (raised.message, raised.hint, str(raised)) == ("what happened", "what to do", "what happened")


def package(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [
        (
            "requirements-dev.lock",
            [
                *project()["project"]["dependencies"],
                *(one for extra in project()["project"]["optional-dependencies"].values() for one in extra),
            ],
        ),
        ("requirements-docs.lock", project()["dependency-groups"]["docs"]),
    ],
)
def test_lock_file_contains_every_dependency_with_hashes(lock: str, requirements: list[str]):
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("--hash=sha256:" in entry for entry in entries)
    assert requirements
    assert {package(one) for one in requirements} <= {package(entry) for entry in entries}, "run scripts/lock"


def test_shell_scripts_are_executable_and_exit_on_errors():
    for path in (one for one in (ROOT / "scripts").iterdir() if one.is_file()):
        first = path.read_text(encoding="utf-8").splitlines()[0]
        if first == "#!/usr/bin/env bash":
            assert path.stat().st_mode & 0o111, path
            assert "set -euo pipefail" in path.read_text(encoding="utf-8"), path
            subprocess.run(["bash", "-n", path], check=True)
