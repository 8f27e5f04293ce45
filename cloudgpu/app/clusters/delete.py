"""`down`: end a cluster and say so only when the cloud confirms it."""

from collections.abc import Sequence, Set
from dataclasses import replace

from cloudgpu.app.clusters.region_failures import RegionFailures
from cloudgpu.app.clusters.row_closing import Closing
from cloudgpu.app.clusters.storage import ClusterStorage
from cloudgpu.app.clusters.tagged_resources import Recorded, TagSearch, Whose, has_token
from cloudgpu.app.clusters.unanswered_launches import UnansweredLaunches, unlaunched
from cloudgpu.app.clusters.unrecorded import UnrecordedTeardown
from cloudgpu.aws.ec2.tagged_types import GLOBAL
from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.deletion import Ended, check_identity, check_recorded
from cloudgpu.backends.deletion_records import end_runs, forget
from cloudgpu.backends.missing_rows import restore
from cloudgpu.backends.storage_outcome import NOTHING
from cloudgpu.engine.base import Stack
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import CloudGpuError, StateError, UsageError
from cloudgpu.ledger.entry import Entry
from cloudgpu.paths import Home, bundled, unwritable
from cloudgpu.run.progress import Note
from cloudgpu.state.identifiers import checked_cluster
from cloudgpu.state.records import ClusterRecord

_SETTLE_S = 20.0
"""How long AWS may take to list what it has made, seconds."""


def stack_of(home: Home, record: ClusterRecord, region: str = "") -> Stack:
    """The stack of a recorded cluster in one region, by default the one tried last."""
    region = region or record.region
    return Stack(
        name=record.name,
        region=region,
        program=bundled("infra"),
        config=record.config,
        journal=home.cluster(record.name).journal(region),
    )


class Teardown:
    """Ends clusters. One object for one cloud and one home."""

    def __init__(self, context: CloudContext) -> None:
        self._context = context
        self._billing = ClusterBilling(context)
        self._strays = TagSearch(context)
        self._launches = UnansweredLaunches(context)

    def down(self, name: str, default_region: str) -> Ended:
        """End a cluster, known or only found by its tag; nothing to end is success.

        Raises:
            TeardownError: Something is left, or could not be asked about.
            StateError: The cluster belongs to another account or endpoint.
            BusyError: Another process is at this cluster.
            UsageError: What carries this name is somebody else's, or nothing can be called so.
            LedgerError: It has ended, and the ledger could not be read or written.
        """
        ended = self.delete(name, default_region)
        check_recorded(self._context, ended, f"cluster {name} is gone, confirmed by a search for its tag")
        return ended

    def delete(self, name: str, default_region: str) -> Ended:
        """Do what `down` does, and leave it to the caller to look at what could not be recorded.

        Raises:
            TeardownError: Something is left, or could not be asked about.
            StateError: The cluster belongs to another account or endpoint.
            BusyError: Another process is at this cluster.
            UsageError: What carries this name is somebody else's, or nothing can be called so.
        """
        path = self._context.home.cluster(checked_cluster(name)).root / "lease"
        with Lease(path, self._context.clock, self._context.owner).hold(tidy=True, required=False) as lease:
            if lease.problem:
                self._context.emit(Note(f"{lease.problem}; deleting cluster {name} all the same"))
            return self._ended(name, default_region)

    def _ended(self, name: str, default_region: str) -> Ended:
        record = self._recorded(name)
        if record is None:
            return self._end_unrecorded(name, default_region)
        return self.end(record, whose=lambda one: self._strays.mine(one, record.token))

    def end(self, record: ClusterRecord, *, whose: Whose | None = None) -> Ended:
        """End a recorded cluster; the caller holds its lease. Without `whose`, only what carries its own token.

        Raises:
            TeardownError: Something is left.
        """
        record = self._context.records.cluster(record.name) or record
        check_identity(record, self._context.cloud)
        restore(self._context, record)
        rows = self._billing.rows(record)
        regions = _distinct([*record.regions, *self._regions_of(record.name, rows)])
        failures = RegionFailures(record.name, regions)
        record = self._marked(record)
        closing = Closing.begun(self._context, rows)
        asked = whose or (lambda one: has_token(one, record.token))
        strays = self._emptied(record, asked, failures, cut_off=whose is not None)
        # Where a region is confirmed empty nothing costs money any more, whatever is unknown elsewhere.
        closing.close([row for row in self._billing.rows(record) if row.spending.region not in failures])
        storage = NOTHING
        with failures.guard(record.region):
            storage = ClusterStorage(self._context).end(record)
        failures.raise_any(self._not_enabled(record, failures))
        rows = self._billing.rows(record)
        unsaved = end_runs(self._context, record.name) if whose is not None else ()
        return Ended(
            cluster=record.name,
            known=True,
            unsaved=(*unsaved, *forget(self._context, record.name)),
            instances=record.instance_ids,
            strays=strays,
            usd=self._billing.usd(rows, self._context.clock.now()),
            estimated=any(part.estimated for row in rows for part in row.parts.values()),
            simulated=record.simulated,
            run_id=record.run_id,
            storage=storage,
        )

    def end_region(self, record: ClusterRecord, region: str) -> None:
        """Empty one region before another is tried.

        Raises:
            TeardownError: Something is left there.
        """
        try:
            engine = self._context.cloud.engine(record)
        except UsageError as err:
            # Without its tool the engine's state cannot be read; the tags still tell of everything.
            raise StateError(err.message, hint=err.hint) from err
        if record.engine == "pulumi":
            self._context.home.ensure()  # its command line writes its state before and after every call
        try:
            engine.destroy(stack_of(self._context.home, record, region), self._context.emit)
        except OSError as err:
            raise unwritable(self._context.home.root, err) from err

    def _recorded(self, name: str) -> ClusterRecord | None:
        """The record, None where there is none or it cannot be read: tags tell of the cluster then."""
        try:
            return self._context.records.cluster(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; looking for the cluster by its tags"))
            return None

    def _end_unrecorded(self, name: str, default_region: str) -> Ended:
        """End what carries the name in every region that the ledger or a journal knows for it, and in the default one.

        Raises:
            UsageError: All that carries the name is somebody else's.
            TeardownError: Something is left, or a region could not be asked.
        """
        rows = self._billing.rows_without_record(name)
        regions = _distinct([default_region, *self._regions_of(name, rows)])
        done = UnrecordedTeardown(self._context, name, regions).end()
        return Ended(
            name,
            known=False,
            unsaved=(*end_runs(self._context, name), *forget(self._context, name)),
            strays=done.strays,
            usd=done.usd,
            estimated=done.estimated,
            simulated=self._context.cloud.target == "rehearsal",
            storage=done.storage,
        )

    def _regions_of(self, name: str, rows: Sequence[Entry]) -> list[str]:
        """Return the regions that the ledger and the journals of this home know for a cluster."""
        root = self._context.home.cluster(name).root
        journals = sorted(path.stem for path in root.glob("*.journal")) if root.is_dir() else []
        return [*(row.spending.region for row in rows), *journals]

    def _not_enabled(self, record: ClusterRecord, failures: RegionFailures) -> dict[str, str]:
        """Return what to say of regions that the account does not have: the record may be wrong about them."""
        if not failures:
            return {}
        try:
            enabled = (*self._context.cloud.regions(), GLOBAL)
        except CloudGpuError:
            return {}
        path = self._context.home.cluster(record.name).record
        why = f"the account has no such region enabled; enable it, or correct {path}, which names it"
        return {region: why for region in failures.regions if region not in enabled}

    def _marked(self, record: ClusterRecord) -> ClusterRecord:
        """Say in the record that it ends. A full disk is no reason to let the nodes run on."""
        try:
            return self._context.records.save_cluster(replace(record, state="ending"), self._context.clock.now())
        except StateError as err:
            self._context.emit(Note(f"{err.message}; going on all the same"))
            return record

    def _emptied(
        self, record: ClusterRecord, whose: Whose, failures: RegionFailures, *, cut_off: bool
    ) -> tuple[str, ...]:
        """End the nodes, then what the journals know, then what only the tags know; each region on its own.

        Args:
            record: The cluster.
            whose: What of the things that are found is the cluster's.
            failures: Takes what went wrong, with every region that is handled.
            cut_off: Whether another process may have been killed while it launched the cluster.
        """
        begun_at = self._context.clock.now()
        name, regions = record.name, failures.asked
        if not regions:
            return ()  # it was killed before its first attempt anywhere
        doubtful = unlaunched(self._billing.rows(record))
        known = {region for region in regions if not cut_off or self._has_journal(record, region)}
        done = self._strays.end_nodes(name, regions, whose, Recorded(record.region, record.instance_ids))
        failures.add_all(done.errors)
        self._billing.note_launched(
            self._billing.rows(record), [one for one in done.seen if has_token(one, record.token)]
        )
        # A region that did not answer comes last: its journal may wait for it again and again.
        in_turn = sorted(regions, key=failures.__contains__)
        blind = {region for region in in_turn if self._destroyed(record, region, failures)}
        strays = done.ended + self._strays.end_rest(name, (*regions, GLOBAL), whose, failures)
        unknown = [row for row in doubtful if row.spending.region not in known - blind]
        if self._launches.wait(unknown, begun_at) or self._settled(blind):
            strays += self._strays.end_rest(name, (*regions, GLOBAL), whose, failures)
        own = self._billing.rows(record)
        self._launches.note_ended(name, own, lambda one: has_token(one, record.token), failures)
        return strays

    def _settled(self, blind: Set[str]) -> bool:
        """Without its journal nobody knows which calls are unanswered, and tag search lags behind them."""
        if blind:
            self._context.clock.sleep(_SETTLE_S if self._context.cloud.target == "aws" else 1.0)
        return bool(blind)

    def _destroyed(self, record: ClusterRecord, region: str, failures: RegionFailures) -> bool:
        """Delete what the journal of one region knows; return True if the journal could not be read."""
        with failures.guard(region):
            try:
                self.end_region(record, region)
            except StateError as err:
                self._context.emit(Note(f"{err.message}; looking for what it knew by tags"))
                return True
        return False

    def _has_journal(self, record: ClusterRecord, region: str) -> bool:
        """Whether the journal tells which launches were never answered: its engine waits for those itself."""
        return record.engine == "direct" and stack_of(self._context.home, record, region).journal.exists()


def _distinct(regions: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region for region in regions if region))
