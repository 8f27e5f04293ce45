"""The text of the bootstrap: one variant whole, and of each variant what it consists of."""

from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import bootstrap_script, rendering
from tests.unit.node.test_bootstrap import CASES

GOLDEN = Path(__file__).parent / "golden"
PARTS = Path(rendering.__file__).parent / "shell"
WHOLE = "volta_efa_lustre"
"""The variant whose script is kept whole; of the others what differs is."""


def variant(text: str) -> str:
    """A script with the name of each fixed part in its place: what a variant consists of, and what is its own."""
    for part in sorted(PARTS.glob("*.sh")):
        text = text.replace(part.read_text(), f"[{part.name}]\n")
    return text


def test_golden_whole() -> None:
    expected = GOLDEN / f"bootstrap_{WHOLE}.sh"
    assert bootstrap_script(CASES[WHOLE]) == expected.read_text(), f"write the new text to {expected} if it is meant"


@pytest.mark.parametrize("name", CASES)
def test_golden_variant(name: str) -> None:
    expected = GOLDEN / f"bootstrap_{name}.txt"
    assert variant(bootstrap_script(CASES[name])) == expected.read_text(), (
        f"write the new text to {expected} if it is meant"
    )
