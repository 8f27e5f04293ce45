"""Pages that name a path in the state home name one that exists, below the directory that is the default."""

import re
from pathlib import Path

import platformdirs.macos
import platformdirs.unix
import pytest

from cloudgpu.paths import Home
from tests.documentation import blocks_for

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "recipes").rglob("*.md"))]
HOME = Home(Path("/home"))
NAMES = {value.name for name in vars(Home) if isinstance(value := getattr(HOME, name, None), Path)} | {"ssh", "catalog"}
ON_NODES = {"data", "hosts", "mounts", "runs", "envs", "nccl"}
"""What the agent keeps in ~/.cloudgpu of a node's login user."""


def paths(directory: str, text: str) -> set[str]:
    """Return the first path component of every path below a directory."""
    return set(re.findall(re.escape(directory) + r"/([\w.-]+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_the_state_home_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    assert paths("~/.local/share/cloudgpu", text) <= NAMES
    assert paths("~/.cloudgpu", text) <= ON_NODES


def test_state_files_page_names_the_default_of_each_platform(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    page = (ROOT / "docs/reference/state-files.md").read_text(encoding="utf-8")
    for directories in (platformdirs.unix.Unix, platformdirs.macos.MacOS):
        path = directories("cloudgpu").user_data_dir
        assert f"`{path.replace('/home/me', '~')}`" in page


def test_files_listed_on_the_architecture_page_exist_and_are_on_the_page_about_state_files():
    (listing,) = blocks_for(__file__, "docs/explanation/architecture.md")
    names = re.findall(r"^([\w.-]+)(?:/(\S*))? {2,}\S", listing, re.MULTILINE)
    assert len(names) == len(listing.splitlines())
    assert {name for name, _ in names} <= NAMES | {"live"}  # written by scripts/live only
    page = (ROOT / "docs/reference/state-files.md").read_text(encoding="utf-8")
    assert [name for name, _ in names if f"`{name}" not in page] == []


def test_modules_named_on_the_page_about_state_files_exist():
    page = (ROOT / "docs/reference/state-files.md").read_text(encoding="utf-8")
    modules = {name.removeprefix("cloudgpu/") for name in re.findall(r"`([a-z_/]+\.py)`", page)}
    assert modules
    assert {name for name in modules if not (ROOT / "cloudgpu" / name).is_file()} == set()
