"""The report of one run: as JSON, and as text of 80 columns."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cloudgpu.text import plural, printable

_COLUMNS = 80
_STATES = ("verified", "failed", "not verified")


@dataclass(frozen=True)
class CheckRow:
    """A check in the report."""

    name: str
    verifies: str
    state: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What one run verified.

    Attributes:
        target: `aws` or `rehearsal`.
        started_at: Start of the run, UTC.
        seconds: Duration of the run.
        usd: Cost of the cluster by the ledger; empty if nothing was launched.
        interrupted: Whether a signal ended the run early.
        left: What may still be running and cost money, one line each.
        versions: Versions that the nodes reported, such as the driver's.
    """

    level: str
    target: str
    simulated: bool
    version: str
    region: str
    started_at: str
    seconds: int
    usd: str
    interrupted: bool
    checks: tuple[CheckRow, ...]
    left: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def exit_code(self) -> int:
        """Exit code, as of `cloudgpu`: 6 if something may be left, 130 after a signal, 1 if a check failed."""
        if self.left:
            return 6
        if self.interrupted:
            return 130
        return int(any(check.state == "failed" for check in self.checks))

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"format": 1, **asdict(self)}


def text(report: Report) -> list[str]:
    """Return the report as lines of at most 80 columns."""
    counts = [f"{sum(check.state == state for check in report.checks)} {state}" for state in _STATES]
    simulated = "  [simulated]" if report.simulated else ""
    lines = [
        f"scripts/live {report.level}: {', '.join(counts)}{simulated}",
        f"cloudgpu {report.version}, {report.region}, {report.started_at}, {plural(report.seconds, 'second')}",
        *(["interrupted: later steps were not run"] if report.interrupted else []),
        "",
        *_rows(report.checks),
        "",
        *(f"{name}  {printable(version)}" for name, version in report.versions.items()),
        *_cost(report),
        *([f"left  {line}" for line in report.left] if report.left else _nothing_left(report)),
    ]
    return [piece for line in lines for piece in _wrapped(line)]


def _rows(checks: Sequence[CheckRow]) -> Iterator[str]:
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        head = f"  {check.state:<12}  {check.name:<{width}}  "
        detail = textwrap.wrap(printable(check.detail), _COLUMNS - len(head), break_on_hyphens=False) or [""]
        yield (head + detail[0]).rstrip()
        yield from (" " * len(head) + line for line in detail[1:])


def _cost(report: Report) -> list[str]:
    if not report.usd:
        return []
    return [f"cost  {report.usd} USD" + (" (simulated, nothing was charged)" if report.simulated else "")]


def _nothing_left(report: Report) -> list[str]:
    return ["left  nothing (verified by tag search)"] if report.usd else []


def _wrapped(line: str) -> list[str]:
    if len(line) <= _COLUMNS:
        return [line]
    return textwrap.wrap(line, _COLUMNS, subsequent_indent="    ", break_on_hyphens=False) or [""]


def question(level: str, target: str, region: str, hardware: str, prices: tuple[str, str]) -> list[str]:
    """Return the lines above the question before a launch.

    Args:
        level: Name of the level.
        target: `aws` or `rehearsal`.
        region: Region of the launch.
        hardware: Description of the nodes.
        prices: Worst case of the plan and limit of the level, USD.
    """
    worst, limit = prices
    simulated = target != "aws"
    return [
        f"scripts/live {level}, {'simulated' if simulated else 'on AWS'}, in {region}",
        f"  launches  {hardware}",
        f"  costs     at most {worst} USD" + (" on AWS; nothing is charged here" if simulated else ""),
        f"            (a plan of more than {limit} USD is refused)",
        "  ends      by itself, with `down` and a search of the whole account;",
        "            every node powers itself off 30 minutes after the launch",
    ]
