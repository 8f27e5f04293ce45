"""Events of a command and of its run, which the CLI renders, and the progress of a node's bootstrap.

The limit depends on what the node's image lacks, which the steps in the node's report show. So it needs no record
of the image, and a cluster of an earlier version gets the same limits.

| path | limit | what takes the time |
|---|---|---|
| baked image | 10 minutes | only checks, but the first step may wait while apt ends an upgrade |
| image with a driver | 20 minutes | packages: apt waits up to 10 minutes for its lock, mirrors can be slow |
| plain Ubuntu | 30 minutes | 1 GB of driver packages, or a build of the kernel modules on a few cores |
| plain Ubuntu with EFA | 45 minutes | the EFA archive of 627 MB and its kernel module |

Storage adds 10 minutes (a volume may take 5 minutes to appear, Lustre needs packages), every reboot 5 minutes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from cloudgpu.engine.base import Event
from cloudgpu.text import printable

REBOOT_S = 300
"""Seconds that a node may be unreachable while the bootstrap reboots it."""
_CHECKS_S = 600
_PACKAGES_S = 600
_STORAGE_S = 600
_LONG_STEPS_S: Mapping[str, int] = {"driver": 600, "efa": 900, "efa_plugin": 900}
"""Seconds in addition to `_PACKAGES_S` for the steps that download or build much."""
_STORAGE_STEPS = ("mount_", "lustre")
_MINUTE_S = 60
_LONGEST_STEP = 60


def bootstrap_limit_s(facts: Mapping[str, Any]) -> int:
    """Return how many seconds the bootstrap may take, according to the steps that the node's `probe` reports.

    The running step counts as work until the node reports it as skipped.
    """
    steps = [(str(step.get("name", "")), str(step.get("state", ""))) for step in facts.get("bootstrap_steps") or ()]
    working = {name for name, state in steps if state != "skipped"}
    # A step may say in parentheses what it waits for, such as internet access.
    current = str(facts.get("bootstrap_step") or "").partition(" ")[0]
    if current and current not in {name for name, state in steps if state == "skipped"}:
        working.add(current)
    reboots = sum(state == "rebooting" for _, state in steps)
    return (
        _CHECKS_S
        + (_PACKAGES_S if working else 0)
        + sum(seconds for name, seconds in _LONG_STEPS_S.items() if name in working)
        + (_STORAGE_S if any(name.startswith(_STORAGE_STEPS) for name in working) else 0)
        + reboots * REBOOT_S
    )


def progress_line(facts: Mapping[str, Any], elapsed_s: float) -> str:
    """Describe a bootstrap that is not finished: its step, the time since the caller began to wait, and the limit."""
    state = str(facts.get("bootstrap", "none"))
    if state == "none":
        return "waiting for the bootstrap to start"
    step = current_step(facts)
    verb = "is rebooting the node" if state == "rebooting" else "is running"
    times = f"{duration(elapsed_s)} of at most {duration(bootstrap_limit_s(facts))}"
    return f"bootstrap {verb}{f': {step}' if step else ''} ({times})"


def current_step(facts: Mapping[str, Any]) -> str:
    """Return the name of the bootstrap's current step, safe to print; empty before the first step."""
    return printable(str(facts.get("bootstrap_step") or ""))[:_LONGEST_STEP]


def duration(seconds: float) -> str:
    """Format a duration in the units of a wait: `45 s`, `12 min`, `12 min 30 s`."""
    minutes, rest_s = divmod(int(seconds), _MINUTE_S)
    if not minutes:
        return f"{rest_s} s"
    return f"{minutes} min{f' {rest_s} s' if rest_s else ''}"


@dataclass(frozen=True)
class Note:
    """A progress message. `node` is the node index, or None if the message applies to all nodes.

    `detail` marks a routine message: a terminal shows it only until the next message, and the progress log keeps it.
    """

    text: str
    node: int | None = None
    detail: bool = False


@dataclass(frozen=True)
class Activity:
    """The state of work that takes a while. It replaces the previous state with the same name and node.

    Attributes:
        name: What is being done, for example `waiting for SSH`.
        node: Node index, or None if the work concerns all nodes.
        done: Amount done so far; None if unknown.
        total: Amount of the whole work; None if unknown.
        unit: `B` for bytes, otherwise the plural of what is counted.
        limit_s: Seconds after which the work is given up, counted from its first event; None without a limit.
        last: Last answer or state, for example `connection refused`.
        finished: Whether the work has ended.
    """

    name: str
    node: int | None = None
    done: int | None = None
    total: int | None = None
    unit: str = ""
    limit_s: float | None = None
    last: str = ""
    finished: bool = False


@dataclass(frozen=True)
class LogFolder:
    """The folder whose `progress.log` keeps all progress events from now on, including those emitted before."""

    path: Path


@dataclass(frozen=True)
class RankLine:
    """A line of a rank's output. `alone` means that the run has no other rank."""

    rank: int
    text: str
    alone: bool = False


@dataclass(frozen=True)
class RankOutput:
    """Several lines of a rank's output, so that a fast rank is not slowed down by one event for each line.

    Attributes:
        rank: The rank.
        lines: Its lines.
        alone: Whether the run has no other rank.
        written_at: Time by which the lines were written, at most a second after it; None if it is unknown.
    """

    rank: int
    lines: tuple[str, ...]
    alone: bool = False
    written_at: datetime | None = None

    def each(self) -> Iterator[RankLine]:
        """Yield the lines one by one."""
        return (RankLine(self.rank, line, self.alone) for line in self.lines)


@dataclass(frozen=True)
class MetricValue:
    """A metric value parsed from a rank's output."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class ServiceAddress:
    """The address of a service that is ready, which stays in view while the run is followed."""

    name: str
    url: str


Progress = Note | Activity | LogFolder | RankLine | RankOutput | MetricValue | ServiceAddress
Report = Callable[[Progress], None]


def relay(line: Mapping[str, Any], node: int, report: Report) -> None:
    """Report the progress in a line of an agent's response."""
    if "progress" in line:
        report(Note(str(line["progress"]), node, detail=True))


def ignore_progress(_event: Progress) -> None:
    """Ignore a progress event."""


@contextmanager
def report_transfer(report: Report, name: str, node: int) -> Iterator[Callable[[int, int], None]]:
    """Yield the function that a transfer calls with the bytes done and the bytes in total, and report both."""

    def on_bytes(done: int, total: int) -> None:
        report(Activity(name, node, done, total, "B"))

    try:
        yield on_bytes
    finally:
        report(Activity(name, node, finished=True))


@contextmanager
def report_count(report: Report, name: str, total: int, unit: str) -> Iterator[Callable[[], None]]:
    """Yield the function to call, from any thread, when one more of `total` parts is done, and report the count."""
    lock, done = Lock(), 0

    def step() -> None:
        nonlocal done
        with lock:
            done += 1
            report(Activity(name, done=done, total=total, unit=unit))

    report(Activity(name, done=0, total=total, unit=unit))
    try:
        yield step
    finally:
        report(Activity(name, finished=True))


@dataclass(frozen=True)
class StageChange:
    """The start of a stage (`seconds` is None) or its completion after `seconds`."""

    name: str
    seconds: float | None = None


ProgressEvent = Progress | Event | StageChange
Emit = Callable[[ProgressEvent], None]
