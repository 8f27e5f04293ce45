"""Coverage is summed by package and compared with a minimum for each package."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def floors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_floors", ROOT / "scripts/coverage_floors.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_coverage_is_summed_by_package(floors: ModuleType) -> None:
    root = ROOT / "cloudgpu"
    rows = [(root / "plan/a.py", 10, 9), (root / "plan/checks/b.py", 30, 21), (root / "text.py", 0, 0)]
    found = floors.by_package(rows)
    assert (found["plan"].statements, found["plan"].percent) == (40, 75.0)
    assert found["cloudgpu"].percent == 100.0


def test_low_coverage_and_mismatched_floors_are_reported(floors: ModuleType) -> None:
    found = {"plan": floors.Covered(100, 75), "new": floors.Covered(1, 1)}
    assert floors.problems(found, {"plan": 75, "new": 100}) == []
    assert floors.problems(found, {"plan": 76, "new": 100}) == [
        "plan: 75.0 % of its statements ran, but the floor is 76 %"
    ]
    assert floors.problems(found, {"plan": 75, "old": 1}) == [
        "new has no floor in pyproject.toml",
        "old has a floor but no file",
    ]


def test_every_package_has_a_floor(floors: ModuleType) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cloudgpu"]
    packages = {floors.package_of(path) for path in (ROOT / "cloudgpu").rglob("*.py")}
    assert set(settings["coverage-floors"]) == packages
