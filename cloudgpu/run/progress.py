"""Events of a command and of its run, which the CLI renders, and the timing of its stages."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from cloudgpu.clock import Clock
from cloudgpu.engine.base import Event


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
    """A line of a rank's output. `single_rank` means that the run has no other rank."""

    rank: int
    text: str
    single_rank: bool = False


@dataclass(frozen=True)
class RankOutput:
    """Several lines of a rank's output, so that a fast rank is not slowed down by one event for each line.

    Attributes:
        rank: The rank.
        lines: Its lines.
        single_rank: Whether the run has no other rank.
        written_at: Time by which the lines were written, at most a second after it; None if it is unknown.
    """

    rank: int
    lines: tuple[str, ...]
    single_rank: bool = False
    written_at: datetime | None = None

    def each(self) -> Iterator[RankLine]:
        """Yield the lines one by one."""
        return (RankLine(self.rank, line, self.single_rank) for line in self.lines)


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


class Stages:
    """Records the duration of named, consecutive stages."""

    def __init__(self, clock: Clock, emit: Emit, done: tuple[tuple[str, float], ...] = ()) -> None:
        self._clock = clock
        self._emit = emit
        self.done: list[tuple[str, float]] = list(done)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the duration of a stage, even if the stage fails."""
        self._emit(StageChange(name))
        started = self._clock.monotonic()
        try:
            yield
        finally:
            seconds = round(self._clock.monotonic() - started, 3)
            self.done.append((name, seconds))
            self._emit(StageChange(name, seconds))

    def correct(self, name: str, seconds: float) -> None:
        """Set the duration of a stage that this command, and perhaps others before it, saw only in part."""
        self.done = [(stage, took) for stage, took in self.done if stage != name]
        self.done.append((name, seconds))

    def as_json(self) -> list[dict[str, str | float]]:
        """Return the documented JSON form: the name and seconds of each stage, in order."""
        return [{"name": name, "seconds": seconds} for name, seconds in self.done]
