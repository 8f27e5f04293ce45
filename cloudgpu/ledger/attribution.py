"""Attribute a cluster's time to the runs that used the cluster. Runs that overlap share the time equally."""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from operator import attrgetter

from cloudgpu.ledger.billing import Charge


@dataclass(frozen=True)
class RunInterval:
    """A run and the time during which it used its cluster. `ended_at` is None until the end of the run is recorded."""

    run_id: str
    cluster: str
    recipe: str
    owner: str
    team: str
    state: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Slice:
    """An interval of a charge during which the same set of runs used the cluster."""

    start: datetime
    end: datetime
    runs: tuple[RunInterval, ...]

    @property
    def microseconds(self) -> int:
        """Length of the interval in microseconds."""
        return (self.end - self.start) // timedelta(microseconds=1)


class RunIndex:
    """An index of runs by cluster and time, which keeps lookups fast in ledgers with many runs."""

    def __init__(self, runs: Iterable[RunInterval]) -> None:
        ended: dict[str, list[RunInterval]] = defaultdict(list)
        unended: dict[str, list[RunInterval]] = defaultdict(list)
        for run in sorted(runs, key=attrgetter("started_at")):
            (unended if run.ended_at is None else ended)[run.cluster].append(run)
        self._ended = {name: _Ended.of(of_cluster) for name, of_cluster in ended.items()}
        self._unended = dict(unended)

    def overlapping(self, charge: Charge, until: datetime) -> list[RunInterval]:
        """Return the runs that used the charge's cluster between the start of the charge and `until`."""
        ended = self._ended.get(charge.cluster)
        overlapping = ended.overlapping(charge.start, until) if ended else []
        # A run without a recorded end ended with its nodes at the latest, so only runs that started during the charge
        # can have used the charged nodes.
        unended = self._unended.get(charge.cluster, [])
        first = bisect_left(unended, charge.start, key=attrgetter("started_at"))
        last = bisect_left(unended, until, key=attrgetter("started_at"))
        return overlapping + unended[first:last]


@dataclass(frozen=True)
class _Ended:
    """The finished runs of one cluster, sorted by start. `latest_end[i]` is the latest end in `runs[: i + 1]`."""

    runs: Sequence[RunInterval]
    latest_end: Sequence[datetime]

    @staticmethod
    def of(runs: Sequence[RunInterval]) -> "_Ended":
        return _Ended(runs, list(accumulate((run.ended_at or run.started_at for run in runs), max)))

    def overlapping(self, start: datetime, end: datetime) -> list[RunInterval]:
        first = bisect_right(self.latest_end, start)
        last = bisect_left(self.runs, end, key=attrgetter("started_at"))
        return [run for run in self.runs[first:last] if run.ended_at and run.ended_at > start]


def slices(
    start: datetime, until: datetime, runs: Sequence[RunInterval], cuts: Collection[datetime]
) -> Iterator[Slice]:
    """Split the time from `start` to `until` at every start or end of a run, and at the cuts."""
    edges = {start, until, *_edges(runs), *cuts}
    for left, right in pairwise(sorted(edge for edge in edges if start <= edge <= until)):
        active = tuple(run for run in runs if run.started_at <= left and (run.ended_at or until) >= right)
        yield Slice(left, right, active)


def _edges(runs: Iterable[RunInterval]) -> Iterator[datetime]:
    for run in runs:
        yield run.started_at
        if run.ended_at:
            yield run.ended_at
