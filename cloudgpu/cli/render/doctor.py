"""What `doctor` found as text."""

from collections.abc import Iterator

from cloudgpu.app.diagnostics.check import Check, DiagnosticReport
from cloudgpu.cli.terminal.table import wrapped

_STATE_WIDTH = len("unknown")
_WIDTH = 120


def checkup_lines(checkup: DiagnosticReport) -> list[str]:
    """One line a check, its fix below it, and how many there are of each."""
    name_width = max((len(one.name) for one in checkup.checks), default=0)
    lines = [line for one in checkup.checks for line in _lines(one, name_width)]
    counts = [
        f"{checkup.count(state)} {state}" for state in ("failed", "unknown", "warning", "ok") if checkup.count(state)
    ]
    return [*lines, "", ", ".join(counts)]


def _lines(one: Check, name_width: int) -> Iterator[str]:
    begin = f"{one.state:<{_STATE_WIDTH}}  {one.name:<{name_width}}  "
    inset = " " * len(begin)
    yield from wrapped(begin + one.detail, _WIDTH, inset)
    if one.fix and one.state != "ok":
        yield from wrapped(f"{inset}fix: {one.fix}", _WIDTH, inset)
