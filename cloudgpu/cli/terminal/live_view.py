"""What a terminal shows of a long-running command: lines that stay, and a region at the bottom that is redrawn.

A stage leaves one line when it ends. Routine messages, operations on single resources and the output of ranks are shown
only in the region; the progress log and the logs of the run keep them.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator

from cloudgpu.cli.terminal.number_format import duration
from cloudgpu.cli.terminal.output import ColoredText, Line
from cloudgpu.cli.terminal.progress_lines import (
    STAGES,
    activity_text,
    address_line,
    elapsed_text,
    rank_line,
    resource_words,
    shorten_aws_error,
)
from cloudgpu.cli.terminal.wrapping import display_width
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import (
    Activity,
    LogFolder,
    MetricValue,
    Note,
    ProgressEvent,
    RankLine,
    RankOutput,
    ServiceAddress,
    StageChange,
)
from cloudgpu.text import plural, printable

_NOTABLE_S = 2.0
"""Minimum duration in seconds of a stage that leaves a line even without anything else to report."""
_TAIL = 8
"""Maximum number of lines of rank output in the region."""
_NODES = 4
"""Maximum number of nodes whose latest message is in the region."""
_ACTIVITIES = 4
_METRICS = 4
_PAST = {"create": "created", "update": "updated", "replace": "replaced", "delete": "deleted", "adopt": "adopted"}
_PRESENT = {"create": "creating", "update": "updating", "replace": "replacing", "delete": "deleting"}


class LiveView:
    """The state of the command that is shown. Safe to use from several threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._stages: list[tuple[str, float]] = []
        self._counts: Counter[str] = Counter()
        self._resources: dict[str, str] = {}
        self._details: dict[int | None, str] = {}
        self._activities: dict[tuple[str, int | None], tuple[Activity, float]] = {}
        self._tail: deque[RankLine] = deque(maxlen=_TAIL)
        self._metrics: dict[str, MetricValue] = {}
        self._addresses: dict[str, ServiceAddress] = {}

    @property
    def active(self) -> bool:
        """Whether there is work to show."""
        return bool(self._stages or self._activities)

    def take(self, event: ProgressEvent) -> list[Line] | None:
        """Update the state, and return the lines that stay on the screen; None for an event outside any stage.

        The region does not summarize such an event, so the caller must print it as in a pipe.
        """
        with self._lock:
            if not self._stages and isinstance(event, Note | Event | RankLine | RankOutput):
                return None
            return list(self._lines_of(event))

    def region(self, columns: int, rows: int) -> list[Line]:
        """Return the lines of the region, for a terminal of this size."""
        with self._lock:
            addresses = [address_line(address) for address in self._addresses.values()]
            below = [*self._stage_line(), *addresses, *self._detail_lines(), *self._activity_lines()]
            room = max(0, min(_TAIL, rows // 2 - len(below)))
            tail = [rank_line(line) for line in list(self._tail)[-room:]] if room else []
            return [_cut(line, columns) for line in [*tail, *below][: max(1, rows - 1)]]

    def _lines_of(self, event: ProgressEvent) -> Iterator[Line]:
        match event:
            case StageChange():
                yield from self._stage(event)
            case Note():
                yield from self._note(event)
            case Event():
                yield from self._resource(event)
            case RankLine() | RankOutput():
                self._output(event)
            case Activity():
                self._set_activity(event)
            case MetricValue() | ServiceAddress():
                yield from self._store(event)
            case LogFolder():
                return

    def _output(self, output: RankLine | RankOutput) -> None:
        if isinstance(output, RankLine):
            self._tail.append(output)
        else:  # only the last lines, because the region has no room for more
            self._tail.extend(RankLine(output.rank, line, output.single_rank) for line in output.lines[-_TAIL:])

    def _store(self, value: MetricValue | ServiceAddress) -> Iterator[Line]:
        if isinstance(value, MetricValue):
            self._metrics[value.name] = value
        else:
            self._addresses[value.name] = value
            yield f"    {value.url}"

    def _stage(self, change: StageChange) -> Iterator[Line]:
        if change.seconds is not None:
            yield from self._ended(change.name, change.seconds)
            return
        self._stages.append((change.name, self._now()))
        self._forget()

    def _note(self, note: Note) -> Iterator[Line]:
        if note.detail:
            self._details.pop(note.node, None)  # the newest message comes last
            self._details[note.node] = note.text
        else:
            node = "" if note.node is None else f"node {note.node}: "
            yield f"{self._prefix()}{node}{note.text}"

    def _prefix(self) -> str:
        return f"{self._stages[-1][0]}: "

    def _ended(self, name: str, seconds: float) -> Iterator[Line]:
        counts = [f"{plural(count, 'resource')} {_PAST[operation]}" for operation, count in self._counts.items()]
        if counts or seconds >= _NOTABLE_S:
            facts = f"  {', '.join(counts)}" if counts else ""
            yield (ColoredText(f"==> {name}", "bold"), ColoredText(f"  {duration(seconds)}{facts}", "dim"))
        if self._stages:
            self._stages.pop()
        self._forget()

    def _forget(self) -> None:
        """Drop what belongs to the previous stage."""
        self._counts.clear()
        self._resources.clear()
        self._details.clear()
        self._activities.clear()
        self._tail.clear()
        self._metrics.clear()
        self._addresses.clear()

    def _set_activity(self, activity: Activity) -> None:
        key = activity.name, activity.node
        began = self._activities.pop(key, (activity, self._now()))[1]
        if not activity.finished:
            self._activities[key] = activity, began

    def _resource(self, event: Event) -> Iterator[Line]:
        kind = resource_words(event.type)
        key = f"{kind} {event.name}"
        if event.kind == "failed":
            yield (self._prefix(), ColoredText("x", "red"), f" {kind}: {shorten_aws_error(event.detail)}")
        if event.kind == "start" and event.operation in _PRESENT:
            self._resources[key] = f"{_PRESENT[event.operation]} {kind}"
        elif event.kind == "waiting":
            self._details.pop(None, None)
            self._details[None] = event.detail if event.type == "pulumi:log" else f"waiting for {key}, {event.detail}"
        elif event.kind in ("done", "failed"):
            self._resources.pop(key, None)
            if event.kind == "done" and event.operation in _PAST:
                self._counts[event.operation] += 1

    def _stage_line(self) -> Iterator[Line]:
        if not self._stages:
            return
        name, began = self._stages[-1]
        about = STAGES.get(name, "")
        facts = [
            f"{metric.name} {metric.value:g} {metric.unit}".rstrip()
            for metric in list(self._metrics.values())[:_METRICS]
        ]
        words = f"  {elapsed_text(self._now() - began)}  {', '.join(facts) or about}".rstrip()
        yield (ColoredText(f"==> {name}", "bold"), words)

    def _detail_lines(self) -> Iterator[Line]:
        counts = [f"{plural(count, 'resource')} {_PAST[operation]}" for operation, count in self._counts.items()]
        current = list(self._resources.values())[-1:]
        if counts or current:
            yield (ColoredText(f"    {', '.join([*counts, *current])}", "dim"),)
        for node, text in list(self._details.items())[-_NODES:]:
            yield (ColoredText(f"    {'' if node is None else f'node {node}: '}{text}", "dim"),)

    def _activity_lines(self) -> Iterator[Line]:
        shown = list(self._activities.values())[:_ACTIVITIES]
        for activity, began in shown:
            yield f"    {activity_text(activity, self._now() - began)}"
        more = len(self._activities) - len(shown)
        if more:
            yield (ColoredText(f"    and {more} more", "dim"),)


def _cut(line: Line, columns: int) -> Line:
    """Cut a line to fewer characters than the terminal has columns, so that it never wraps.

    Wide characters count as two columns.
    """
    left = columns - 1
    cut: list[str | ColoredText] = []
    for piece in (line,) if isinstance(line, str) else line:
        text = printable(piece.text if isinstance(piece, ColoredText) else piece).expandtabs(8)
        kept = _fitting(text, left)
        left -= display_width(kept)
        cut.append(ColoredText(kept, piece.colour) if isinstance(piece, ColoredText) else kept)
        if len(kept) < len(text):
            break
    return tuple(cut)


def _fitting(text: str, columns: int) -> str:
    if display_width(text) <= columns:
        return text
    kept, width = "", 0
    for char in text:
        width += display_width(char)
        if width > columns - 1:
            return f"{kept}…"
        kept += char
    return kept
