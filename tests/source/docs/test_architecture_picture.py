"""The layer diagram in the architecture page matches the import contracts."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.documentation import blocks_for

ROOT = Path(__file__).parents[3]
(PICTURE,) = blocks_for(__file__, "docs/explanation/architecture.md")
ROWS = {
    names: " ".join(what.split())
    for names, what in re.findall(
        r"^  ([a-z]\w*(?:, \w+)*)(?:  +(.*))?$", re.sub(r"\n {33}", "  ", PICTURE), re.MULTILINE
    )
}


def contract(name: str) -> list[set[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == name]
    return [{part.strip().removeprefix("cloudgpu.") for part in re.split("[|:]", layer)} for layer in found["layers"]]


def test_architecture_diagram_matches_the_layer_contract():
    assert [set(names.split(", ")) for names in ROWS] == contract("layers")


@pytest.mark.parametrize(
    ("package", "name", "shown"),
    [("app", "layers of the use cases", 7), ("backends", "backends know nothing of each other", 3)],
)
def test_package_order_in_diagram_matches_its_contract(package: str, name: str, shown: int):
    parts = [set(part.split(", ")) for part in ROWS[package].split(" > ")][:shown]
    assert parts == contract(name)[:shown]


def test_every_package_in_the_diagram_exists():
    for names in ROWS:
        for one in names.split(", "):
            assert (ROOT / "cloudgpu" / one).is_dir() or (ROOT / "cloudgpu" / f"{one}.py").is_file(), one
