"""Only `cloudgpu.bounds` parses numbers: `isdigit` accepts `²`, and `int` rejects 4,301 digits."""

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "cloudgpu"
GUARD = re.compile(r"\.(?:isdigit|isdecimal|isnumeric)\(\)")
ALLOWED = {
    "cli/options.py": "one character, which is never converted",
    "node/agent/gpus.py": "travels to the node; checks ASCII and the number of digits",
    "node/agent/gang/ranks.py": "bytes of the agent's own pipe",
    "node/agent/probe.py": "travels to the node; a failure is the documented ValueError",
    "node/agent/proc.py": "folders of /proc",
    "node/agent/mount.py": "folders of /proc",
    "rehearsal/server/process.py": "32 bytes of a lock file",
    "ssh/transfer/fetch.py": "checks ASCII and the number of digits",
}
"""File -> reason why it may check the text itself."""


def guards(source: str) -> int:
    """Return the number of checks whether text is a number that do not use `cloudgpu.bounds`."""
    return len(GUARD.findall(source))


def test_numbers_are_parsed_only_by_the_bounds_module():
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if guards(path.read_text())}
    assert found == set(ALLOWED), "read numbers with cloudgpu.bounds, or give the reason here"


@pytest.mark.parametrize(("line", "count"), [("if text.isdigit():", 1), ("word.isnumeric()", 1), ("isdigit(x)", 0)])
def test_isdigit_checks_are_detected(line: str, count: int):
    assert guards(line) == count
