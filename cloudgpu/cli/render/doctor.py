"""Render the results of `doctor` as text."""

from collections.abc import Iterator

from cloudgpu.app.diagnostics.check import Diagnosis, DiagnosticReport
from cloudgpu.cli.terminal.wrapping import wrap_paragraph

_STATE_WIDTH = len("unknown")
_WIDTH = 120


def diagnostic_lines(report: DiagnosticReport, width: int | None = None) -> list[str]:
    """Return one line per check, followed by its fix, and the number of checks in each state."""
    name_width = max((len(check.name) for check in report.checks), default=0)
    columns = min(width or _WIDTH, _WIDTH)
    lines = [line for check in report.checks for line in _lines(check, name_width, columns)]
    counts = [
        f"{report.count(state)} {state}" for state in ("failed", "unknown", "warning", "ok") if report.count(state)
    ]
    return [*lines, "", ", ".join(counts)]


def _lines(check: Diagnosis, name_width: int, columns: int) -> Iterator[str]:
    begin = f"{check.state:<{_STATE_WIDTH}}  {check.name:<{name_width}}  "
    inset = " " * len(begin)
    yield from wrap_paragraph(begin + check.detail, columns, inset)
    if check.fix and check.state != "ok":
        yield from wrap_paragraph(f"{inset}fix: {check.fix}", columns, inset)
