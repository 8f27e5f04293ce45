"""The pure functions of `scripts/release`: changelog edits and wheel contents."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n### Fixed\n\n- a\n\n## [0.1.0] - 2026-01-01\n\n- b\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def names(release: ModuleType) -> list[str]:
    return [*release.CARRIED, "cloudgpu/cli/main.py", "cloudgpu-0.2.0.dist-info/licenses/LICENSE"]


def test_release_moves_unreleased_entries_into_the_version_section(release: ModuleType) -> None:
    moved = release.released(CHANGELOG, "0.2.0", "2026-11-22")
    assert moved == (
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-22\n\n### Fixed\n\n- a\n"
        "\n## [0.1.0] - 2026-01-01\n\n- b\n"
    )
    assert release.changelog_problem(moved, "0.2.0") == ""
    with pytest.raises(release.StopError, match="no entries under"):
        release.released(moved, "0.3.0", "2026-11-23")
    with pytest.raises(release.StopError, match="already"):
        release.released(moved, "0.2.0", "2026-11-23")


def test_first_release_creates_the_only_version_section(release: ModuleType) -> None:
    moved = release.released("# C\n\n## [Unreleased]\n\n- a\n", "0.1.0", "2026-11-22")
    assert moved == "# C\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-22\n\n- a\n"
    assert release.changelog_problem(moved, "0.1.0") == ""


def test_missing_or_empty_version_section_is_reported(release: ModuleType) -> None:
    assert "no section" in release.changelog_problem(CHANGELOG, "0.2.0")
    assert "no section" in release.changelog_problem(CHANGELOG, "0.1")
    assert "is empty" in release.changelog_problem("## [0.2.0] - 2026-11-22\n\n## [0.1.0] - 2026-01-01\n- b\n", "0.2.0")


def test_complete_wheel_has_no_problems(release: ModuleType, names: list[str]) -> None:
    assert release.content_problems(names, 1 << 20) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("cloudgpu/tests/test_a.py", "contains cloudgpu/tests/test_a.py"),
        ("cloudgpu/__pycache__/a.cpython-311.pyc", "contains"),
        ("cloudgpu/recipes/x/.mypy_cache/a", "contains"),
        ("cloudgpu/a.py.orig", "contains"),
        ("tests/a.py", "outside of cloudgpu"),
    ],
)
def test_unexpected_wheel_contents_are_reported(release: ModuleType, names: list[str], more: str, said: str) -> None:
    assert any(said in one for one in release.content_problems([*names, more], 1 << 20))


def test_missing_wheel_contents_and_excess_size_are_reported(release: ModuleType, names: list[str]) -> None:
    for missing in [*release.CARRIED, names[-1]]:
        (said,) = release.content_problems([one for one in names if one != missing], 1 << 20)
        assert said.startswith("the wheel does not contain")
    (large,) = release.content_problems(names, 10 << 20)
    assert "bytes, more than" in large
