"""`down` of several clusters: which ones, all of them at once, each with a lease of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cloudgpu.app.clusters.factory import ClusterDeleter
from cloudgpu.backends.deletion import Ended
from cloudgpu.backends.events import Emit, ProgressEvent
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError, UsageError
from cloudgpu.run.progress import Note
from cloudgpu.state.records import Records
from cloudgpu.text import command

_AT_ONCE = 8
"""Each ends the things of its cluster in parallel as well."""

TeardownOf = Callable[[str, Emit], ClusterDeleter]
"""How the cluster of this name is ended, telling what happens."""


@dataclass(frozen=True)
class Choice:
    """Which clusters are meant.

    Attributes:
        asked: Each was named by the caller, so that nobody need be asked whether it is meant.
    """

    names: tuple[str, ...]
    asked: bool


@dataclass(frozen=True)
class TeardownResults:
    """What came of several: those confirmed gone, and for each of the others why it is not."""

    ended: tuple[Ended, ...]
    failed: tuple[tuple[str, CloudGpuError], ...] = ()
    unrecorded: tuple[tuple[str, CloudGpuError], ...] = ()
    """Those that were deleted, confirmed, and could not be recorded."""

    @property
    def left(self) -> tuple[str, ...]:
        """A line for everything that is left or that nobody knows about, with its cluster and the reason."""
        return tuple(f"{name}: {line}" for name, err in self.failed for line in lines(err))

    def error(self) -> CloudGpuError | None:
        """The one error for all that failed, None when nothing did; what is left comes before what is not recorded."""
        if self.failed:
            return self._left_error()
        if not self.unrecorded:
            return None
        names = [name for name, _ in self.unrecorded]
        why = "; ".join(dict.fromkeys(err.message for _, err in self.unrecorded))
        hint = f"free some space on the disk, then `{command('cloudgpu', 'down', *names)}` again, which records it"
        kind = next((LedgerError for _, err in self.unrecorded if isinstance(err, LedgerError)), StateError)
        return kind(why, hint=hint)

    def _left_error(self) -> TeardownError:
        names = [name for name, _ in self.failed]
        count = len(names) + len(self.ended) + len(self.unrecorded)
        message = f"{len(names)} of {count} clusters are not confirmed gone: {', '.join(names)}"
        again = command("cloudgpu", "down", *names)
        return TeardownError(message, left=self.left, hint=f"`{again}` goes on where it stopped")


def chosen(records: Records, names: Sequence[str], *, every: bool, run_id: str, owner: str | None) -> Choice:
    """Which clusters of this home are meant: by name, all of them, that of a run, or those of an owner.

    Raises:
        UsageError: Several ways were given at once, or there is no such run.
    """
    ways = [bool(names), every, bool(run_id), owner is not None]
    if sum(ways) > 1:
        raise UsageError("name clusters, or say --all, --mine or --run", hint="cloudgpu down --help")
    if run_id:
        run = records.run(run_id)
        if run is None:
            raise UsageError(f"there is no run {run_id}", hint="`cloudgpu status --all` lists the runs")
        cluster = records.last_known(run.cluster)
        # A cluster that the run only used is somebody's who goes on using it.
        return Choice((run.cluster,), asked=cluster is None or cluster.run_id == run_id)
    if names:
        return Choice(tuple(dict.fromkeys(names)), asked=True)
    known = records.clusters()
    # Of a damaged record nobody knows the owner; it lies in this home.
    return Choice(tuple(one.name for one in known if owner is None or one.owner in ("", owner)), asked=False)


def end_all(names: Sequence[str], teardown_of: TeardownOf, region: str, emit: Emit) -> TeardownResults:
    """End these clusters at once; what goes wrong with one does not stop the others. Only our own errors are kept."""

    def end(name: str) -> Ended | CloudGpuError:
        try:
            return teardown_of(name, _named(name, emit)).down(name, region)
        except CloudGpuError as err:
            emit(Note(f"{name}: {err.message}"))
            return err

    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(names))), thread_name_prefix="down") as pool:
        outcomes = list(zip(names, pool.map(end, names), strict=True))
    ended = tuple(one for _, one in outcomes if isinstance(one, Ended))
    failed = [(name, one) for name, one in outcomes if isinstance(one, CloudGpuError)]
    return TeardownResults(
        ended,
        failed=tuple((name, err) for name, err in failed if not _is_deleted(err)),
        unrecorded=tuple((name, err) for name, err in failed if _is_deleted(err)),
    )


def _is_deleted(err: CloudGpuError) -> bool:
    """Return True for the error of a teardown that deleted everything: it carries what `down` confirmed."""
    return isinstance(err, LedgerError | StateError) and "instances_ended" in err.partial_result


def _named(name: str, emit: Emit) -> Emit:
    """Notes of clusters that end at the same time say which one they are about."""

    def tell(what: ProgressEvent) -> None:
        emit(Note(f"{name}: {what.text}") if isinstance(what, Note) and what.node is None else what)

    return tell


def lines(err: CloudGpuError) -> tuple[str, ...]:
    """Everything that is left as an error has it; else the error itself."""
    return tuple(getattr(err, "left", ())) or (err.message,)
