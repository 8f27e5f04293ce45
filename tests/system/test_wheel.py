"""The wheel works outside the checkout and installs only the `cloudgpu` package."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.documentation import blocks_for

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
CARRIED = (
    "cloudgpu/py.typed",
    "cloudgpu/infra/Pulumi.yaml",
    "cloudgpu/infra/__main__.py",
    "cloudgpu/infra/gpu_cluster/__init__.py",
    "cloudgpu/recipes/quickstart/recipe.yaml",
    "cloudgpu/recipes/quickstart/train.py",
    "cloudgpu/recipes/quickstart/data/digits.csv.gz",
    "cloudgpu/catalog/data/instance_types.json",
    "cloudgpu/node/agent/main.py",
    "cloudgpu/images/README.md",
)
INSTALLING_S = 600
(SHOWN,) = blocks_for(__file__, "README.md")
BUILD, INSTALL, COMPLETE = SHOWN.splitlines()
DATA = {".json", ".yaml", ".toml", ".csv", ".sh", ".txt", ".gz"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the files that git would commit; the checkout stays unchanged."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    # Without isolation, the build uses the hatchling of this environment instead of downloading it.
    shell(BUILD, source, Path(sys.executable).parent, PIP_NO_BUILD_ISOLATION="1")
    (found,) = (source / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and its dependencies, in the locked versions, into a new virtual environment."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    shell(
        INSTALL,
        wheel.parents[1],
        Path(sys.executable).parent,
        PIP_PYTHON=str(home / "bin" / "python"),
        # Hashes cannot be asked for here: a constraint has none, and the wheel is new each time.
        PIP_CONSTRAINT=str(versions(home.parent)),
        PIP_NO_COMPILE="1",
    )
    return home


def shell(line: str, cwd: Path, programs: Path, **variables: str) -> None:
    """Run a line of the README in a shell that finds `programs` first."""
    env = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables
    done = subprocess.run(
        ["bash", "-c", f"{line} || exit"],  # no `exec` of the only command: its parent must be a shell
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALLING_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def versions(folder: Path) -> Path:
    """Write the lock file without hashes, so that pip reuses the versions it has already downloaded."""
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pinned = folder / "versions.txt"
    pinned.write_text("".join(line.removesuffix("\\").strip() + "\n" for line in lines if line[:1].isalnum()))
    return pinned


def command(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env.setdefault("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache" / "envs"))
    return subprocess.run(
        [installed / "bin" / "cloudgpu", *arguments],
        cwd=cwd,
        env=env | {"CLOUDGPU_HOME": str(cwd / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )


def test_wheel_contains_single_package_with_all_data_files(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"cloudgpu"}
    assert [name for name in CARRIED if name not in names] == []
    data = [path.relative_to(ROOT) for path in (ROOT / "cloudgpu").rglob("*") if path.suffix in DATA and path.is_file()]
    assert [str(path) for path in data if str(path) not in names] == []
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".orig", ".log"))]


def test_wheel_contains_and_declares_licence(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(f"{folder}/METADATA").decode().split("\n\n")[0].splitlines()
        licence = archive.read(f"{folder}/licenses/LICENSE")
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert {"License-Expression: Apache-2.0", "License-File: LICENSE"} <= set(metadata)


def test_installed_wheel_runs_outside_checkout(installed: Path, tmp_path: Path):
    shown = command(installed, "--version", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    where = subprocess.run(
        [installed / "bin" / "python", "-c", "import cloudgpu; print(cloudgpu.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(installed)


def test_completion_is_installed_as_the_readme_says(installed: Path, tmp_path: Path):
    shell(COMPLETE, tmp_path, installed / "bin", HOME=str(tmp_path))
    assert "cloudgpu" in (tmp_path / ".bashrc").read_text()
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "_CLOUDGPU_COMPLETE" in script.read_text()


def test_installed_wheel_finds_bundled_recipes_and_pulumi_program(installed: Path, tmp_path: Path):
    checked = command(installed, "recipe", "check", "quickstart", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "\nquickstart " in command(installed, "recipe", "list", cwd=tmp_path).stdout
    planned = command(installed, "plan", "quickstart", "--on", "rehearsal", "--offline", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert '"p3dn.24xlarge"' in planned.stdout
    program = "from cloudgpu.paths import bundled_folder; print(bundled_folder('infra') / 'Pulumi.yaml')"
    found = subprocess.run(
        [installed / "bin" / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_file()
    assert Path(found.stdout.strip()).is_relative_to(installed)


def test_installed_wheel_trains_quickstart_recipe(installed: Path, tmp_path: Path):
    """The recipe is given by name because the checkout is not accessible. Later commands work there too."""
    try:
        trained = command(installed, "train", "quickstart", "--on", "rehearsal", "--yes", "--json", cwd=tmp_path)
        assert trained.returncode == 0, trained.stderr
        outcome = json.loads(trained.stdout)
        assert (outcome["state"], outcome["left"]) == ("succeeded", [])
        assert outcome["metrics"]["accuracy"]["value"] >= 0.95
        bill = json.loads(command(installed, "cost", "--json", cwd=tmp_path).stdout)
        assert [row["run"] for row in bill["rows"]] == [outcome["run_id"]]
        assert json.loads(command(installed, "status", "--json", cwd=tmp_path).stdout)["clusters"] == []
    finally:
        command(installed, "rehearsal", "stop", cwd=tmp_path)


def test_wheel_declares_only_cloudgpu_console_script(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        (points,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        scripts = archive.read(points).decode().split()
    assert scripts == ["[console_scripts]", "cloudgpu", "=", "cloudgpu.cli.main:entry"]
