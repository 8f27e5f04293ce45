"""Golden files of the bootstrap script: one complete script, and the parts of every variant."""

from pathlib import Path

import pytest

from cloudgpu.node import bootstrap
from cloudgpu.node.bootstrap import bootstrap_script
from tests.unit.node.test_bootstrap import CASES

GOLDEN = Path(__file__).parent / "golden"
PARTS = Path(bootstrap.__file__).parent / "bootstrap_parts"
WHOLE = "volta_efa_lustre"
"""The variant whose complete script is stored; for the others, only the differences are."""


def variant(text: str) -> str:
    """Return a script with each fixed part replaced by its file name."""
    for part in sorted(PARTS.glob("*.sh")):
        text = text.replace(part.read_text(), f"[{part.name}]\n")
    return text


def test_full_bootstrap_script_matches_the_golden_file() -> None:
    expected = GOLDEN / f"bootstrap_{WHOLE}.sh"
    assert bootstrap_script(CASES[WHOLE]) == expected.read_text(), f"write the new text to {expected} if it is meant"


@pytest.mark.parametrize("name", CASES)
def test_bootstrap_variant_matches_its_golden_file(name: str) -> None:
    expected = GOLDEN / f"bootstrap_{name}.txt"
    assert variant(bootstrap_script(CASES[name])) == expected.read_text(), (
        f"write the new text to {expected} if it is meant"
    )
