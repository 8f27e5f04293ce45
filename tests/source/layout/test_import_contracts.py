"""The import contracts cover every module, and the list of known import cycles only shrinks."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
DOORS = {
    "typer and rich only in cloudgpu.cli": {"cloudgpu.cli"},
    "boto3 only in cloudgpu.aws and the rehearsal cloud": {"cloudgpu.aws", "cloudgpu.rehearsal"},
    "paramiko only in cloudgpu.ssh": {"cloudgpu.ssh"},
    "pulumi only in cloudgpu.engine and the programs": {"cloudgpu.engine"},
    "moto, asyncssh and werkzeug only in cloudgpu.rehearsal": {"cloudgpu.rehearsal"},
}
"""Contract -> modules that may import what it forbids to all others."""


@pytest.fixture(scope="module")
def contracts() -> dict[str, dict]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {one["name"]: one for one in settings["tool"]["importlinter"]["contracts"]}


@pytest.fixture(scope="module")
def import_cycles() -> ModuleType:
    spec = importlib.util.spec_from_file_location("import_cycles", ROOT / "scripts/import_cycles.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def modules() -> set[str]:
    found = {
        path.stem for path in (ROOT / "cloudgpu").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    return {f"cloudgpu.{name}" for name in found if not name.startswith("__")}


@pytest.mark.parametrize("name", DOORS)
def test_import_contract_covers_every_module_except_its_owners(contracts: dict[str, dict], name: str) -> None:
    ours = {one for one in contracts[name]["source_modules"] if one.startswith("cloudgpu.")}
    assert ours == modules() - DOORS[name]


def test_every_module_is_assigned_to_a_layer(contracts: dict[str, dict]) -> None:
    layers = contracts["layers"]["layers"]
    assert {one.strip() for layer in layers for one in layer.split("|")} == modules()


def test_everything_that_backends_share_is_independent_of_clouds(contracts: dict[str, dict]) -> None:
    shared = contracts["backends know nothing of each other"]["layers"][-1]
    independent = contracts["the interface of the backends and what they share know no cloud"]["source_modules"]
    folder = {path.stem for path in (ROOT / "cloudgpu/backends").iterdir() if not path.name.startswith("__")}
    assert {one.strip() for one in shared.split(":")} == folder - {"aws", "factory", "hosts", "rehearsal"}
    assert {f"cloudgpu.backends.{one.strip()}" for one in shared.split(":")} <= set(independent)


def test_mutually_reachable_modules_form_one_cycle(import_cycles: ModuleType) -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"f", "d"}, "f": {"e"}, "g": {"a"}}
    assert import_cycles.cycles(imports) == {("a", "b", "c"), ("e", "f")}
    assert import_cycles.cycles({"a": {"a"}}) == {("a",)}
    assert import_cycles.cycles({"a": {"b"}, "b": set()}) == set()


def test_new_cycles_and_stale_entries_are_reported(import_cycles: ModuleType) -> None:
    assert import_cycles.problems({("a", "b")}, {("a", "b")}) == []
    assert import_cycles.problems({("a", "b")}, set()) == ["new import cycle: a <-> b"]
    (stale,) = import_cycles.problems(set(), {("a", "b")})
    assert stale.startswith("no longer a cycle")
    # a cycle that grew is a new one, and the smaller one is stale
    assert len(import_cycles.problems({("a", "b", "c")}, {("a", "b")})) == 2
