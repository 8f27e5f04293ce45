"""The wheel works outside the checkout, and installs nothing but `cloudgpu`."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
CARRIED = (
    "cloudgpu/infra/Pulumi.yaml",
    "cloudgpu/infra/__main__.py",
    "cloudgpu/infra/gpu_cluster/__init__.py",
    "cloudgpu/recipes/quickstart/recipe.yaml",
    "cloudgpu/recipes/quickstart/train.py",
    "cloudgpu/images/README.md",
)
DATA = {".json", ".yaml", ".toml", ".csv", ".sh", ".txt", ".gz"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git would commit, so that nothing else slips in and nothing is left in the checkout."""
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
    built = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", built], cwd=source, check=True)
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; the dependencies are lent by the environment that the tests run in."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = home / "lib" / version / "site-packages"
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--disable-pip-version-check", wheel], check=True)
    # A plain path, so that the editable installation's own .pth over there is not followed into the checkout.
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def command(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [installed / "bin" / "cloudgpu", *arguments],
        cwd=cwd,
        env=env | {"CLOUDGPU_HOME": str(cwd / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_it_installs_one_package_and_carries_everything(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"cloudgpu"}
    assert [name for name in CARRIED if name not in names] == []
    data = [path.relative_to(ROOT) for path in (ROOT / "cloudgpu").rglob("*") if path.suffix in DATA and path.is_file()]
    assert [str(path) for path in data if str(path) not in names] == []
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".orig", ".log"))]


def test_it_runs_outside_the_checkout(installed: Path, tmp_path: Path):
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


def test_it_finds_its_recipes_and_its_program(installed: Path, tmp_path: Path):
    checked = command(installed, "recipe", "check", "quickstart", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    planned = command(installed, "plan", "quickstart", "--on", "rehearsal", "--offline", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert '"p3dn.24xlarge"' in planned.stdout
    program = "from cloudgpu.paths import bundled; print(bundled('infra') / 'Pulumi.yaml')"
    found = subprocess.run(
        [installed / "bin" / "python", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_file()
    assert Path(found.stdout.strip()).is_relative_to(installed)
