"""`sweep`: everything with our tags in every region of the account, and the end of what may go."""

from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.app.clusters.delete import Teardown
from cloudgpu.app.clusters.delete_many import lines
from cloudgpu.app.clusters.region_failures import RegionFailures
from cloudgpu.app.clusters.row_closing import Closing
from cloudgpu.app.clusters.storage import ClusterStorage
from cloudgpu.app.clusters.tagged_resources import TOKEN, Recorded, TagSearch, has_token
from cloudgpu.app.clusters.unanswered_launches import UnansweredLaunches, unlaunched
from cloudgpu.app.images.bake import ImageStore
from cloudgpu.app.sweep.cluster_resources import (
    CLUSTER,
    ClusterResources,
    Here,
    SweepRequest,
    Verdict,
    grouped,
    verdict,
)
from cloudgpu.app.sweep.ledger_only import Searched, settled_at, unbacked
from cloudgpu.app.sweep.retained_resources import Around, RetainedResource, of_image, of_storage
from cloudgpu.app.sweep.retained_resources import verdict as may_go
from cloudgpu.backends.base import Tagged, TaggedResource
from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.lenient_ledger import check_ledger
from cloudgpu.catalog import load as load_catalog
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, StateError, TeardownError, UsageError
from cloudgpu.run.progress import Note

_AT_ONCE = 8
"""Regions asked at the same time, and clusters ended at the same time."""
_IAM = "global"
"""What belongs to no region is asked for once."""


@dataclass(frozen=True)
class Seen:
    """What a look through the regions found.

    Attributes:
        regions: Those that answered.
        unknown: Region and why it could not be asked: what is there is unknown, never gone.
        clusters: What there is, each with whether it may go.
        outliving: Storage and images, likewise.
        unseen: Region and why nobody may look at storage and images there: what is there is unknown.
    """

    regions: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]
    clusters: tuple[tuple[ClusterResources, Verdict], ...]
    outliving: tuple[tuple[RetainedResource, Verdict], ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()

    @property
    def storage_going(self) -> tuple[RetainedResource, ...]:
        """Storage that may go."""
        return tuple(one for one, what in self.outliving if what.goes)

    @property
    def going(self) -> tuple[ClusterResources, ...]:
        """What may go."""
        return tuple(one for one, what in self.clusters if what.goes)


@dataclass(frozen=True)
class Swept:
    """What was ended, and for each of the others why it is not."""

    ended: tuple[ClusterResources | RetainedResource, ...]
    failed: tuple[tuple[ClusterResources | RetainedResource, CloudGpuError], ...] = ()

    def with_more(self, other: "Swept") -> "Swept":
        """Both together."""
        return Swept((*self.ended, *other.ended), (*self.failed, *other.failed))


class Sweeping:
    """Looks and ends. One object for one cloud and one home."""

    def __init__(self, context: CloudContext, images: ImageStore) -> None:
        self._context = context
        self._images = images
        self._billing = ClusterBilling(context)
        self._unsaved: list[str] = []

    def look(self, regions: Sequence[str], request: SweepRequest) -> Seen:
        """Ask these regions; where none is named every enabled one, and IAM, which belongs to no region.

        Raises:
            UsageError: The account has no such region.
            CloudError: Nobody can tell which regions there are, and none is named.
        """
        wanted = self._wanted(regions)
        self._context.emit(
            Note(f"looking through {', '.join(wanted) if regions else f'{len(wanted)} regions and IAM'}")
        )
        asked = wanted if regions else (*wanted, _IAM)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sweep") as pool:
            answers = dict(zip(asked, pool.map(self._asked, asked), strict=True))
        unknown = {region: answer.unknown for region, answer in answers.items() if answer.unknown}
        if unknown and answers.pop(_IAM, None) is not None:
            # A role may be what a cluster in a region that does not answer needs, to be ended by its schedule too.
            unknown.setdefault(_IAM, "left alone as long as a region cannot be asked")
        found = [one for answer in answers.values() for one in answer.tagged]
        answered = tuple(one for one in wanted if one not in unknown)
        remains = (*grouped(found, load_catalog(), self._now()), *self._unbacked(found, answered))
        clusters = tuple((one, self._verdict(one, request)) for one in remains if _meant(one, request))
        going = {one.cluster for one, what in clusters if what.goes}
        around = self._around(found, going, all_asked=not unknown and not regions)
        outliving = [one for answer in answers.values() for one in answer.outliving if _meant(one, request)]
        return Seen(
            regions=answered,
            unknown=tuple(unknown.items()),
            clusters=clusters,
            outliving=tuple((one, may_go(one, around, request)) for one in outliving),
            unseen=tuple((region, answer.denied) for region, answer in answers.items() if answer.denied),
        )

    def end_storage(self, storage: Sequence[RetainedResource], clusters: "Swept") -> Swept:
        """End this storage, unless its cluster would not end; what goes wrong with one does not stop the others."""
        remaining = {one.cluster for one, _ in clusters.failed if isinstance(one, ClusterResources)}
        ended: list[RetainedResource] = []
        failed: list[tuple[RetainedResource, CloudGpuError]] = []
        for one in (one for one in storage if one.made_for not in remaining):
            try:
                ClusterStorage(self._context).end_stray(one.name, one.token, one.region)
                ended.append(one)
            except CloudGpuError as err:
                self._context.emit(Note(f"{one.label}: {err.message}"))
                failed.append((one, err))
        return Swept(tuple(ended), tuple(failed))

    def end(self, clusters: Sequence[ClusterResources], default_region: str) -> Swept:
        """End these at once; what goes wrong with one does not stop the others."""
        end = self._ender(default_region)
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(clusters))), thread_name_prefix="sweep") as pool:
            outcomes = list(zip(clusters, pool.map(end, clusters), strict=True))
        return Swept(
            ended=tuple(one for one, err in outcomes if err is None),
            failed=tuple((one, err) for one, err in outcomes if err is not None),
        )

    def check_recorded(self, swept: "Swept") -> None:
        """Refuse to call a sweep done whose end of the costs could not be recorded.

        Raises:
            LedgerError: The ledger could not be read or written.
            StateError: A record could not be written or removed.
        """
        names = ", ".join(one.label for one in swept.ended)
        check_ledger(self._context, f"confirmed gone: {names}" if names else "the account was swept")
        if self._unsaved:
            message = f"confirmed gone: {names}, but the state home does not say so: {'; '.join(self._unsaved)}"
            raise StateError(message, hint="free some space on its disk; `cloudgpu down NAME` then records it")

    def _wanted(self, regions: Sequence[str]) -> tuple[str, ...]:
        """Return the regions to look through: those that are named, or all that the account has."""
        try:
            enabled = tuple(self._context.cloud.regions())
        except CloudError:
            if not regions:
                raise
            return tuple(dict.fromkeys(regions))
        check_regions(regions, enabled)
        return tuple(dict.fromkeys(regions)) or enabled

    def _asked(self, region: str) -> "_Answer":
        """Ask one region; what one question finds is kept although another one is not answered."""
        result = self._context.cloud.search_all_clusters(region)
        unknown = next((err.message for err in result.failures.values()), "")
        if region == _IAM:
            return _Answer(result.found, unknown=unknown)
        denied = ""
        outliving: tuple[RetainedResource, ...] = ()
        try:
            outliving = self._outliving(region)
        except AuthError as err:
            # Who may only use clusters may sweep them all the same.
            denied = err.message
        except CloudGpuError as err:
            unknown = unknown or err.message
        return _Answer(result.found, outliving, denied, unknown)

    def _outliving(self, region: str) -> "tuple[RetainedResource, ...]":
        storage = [of_storage(one) for one in self._context.cloud.storage().found(region)]
        return (*storage, *(of_image(one) for one in self._images.found(region)))

    def _unbacked(self, found: Sequence[Tagged], answered: Sequence[str]) -> tuple[ClusterResources, ...]:
        """Return the clusters that only the ledger still knows."""
        rows = self._context.ledger.entries(state="open")
        tokens = {one.tags.get(TOKEN, "") for one in found}
        return unbacked(rows, self._context.cloud, Searched(frozenset(answered), tokens)) if rows else ()

    def _around(self, found: Sequence[Tagged], going: Set[str], *, all_asked: bool) -> Around:
        """Of the clusters that storage may have been made for; those that go take it with them."""
        here = {record.name for record in self._context.records.clusters()}
        clusters = {one.tags[CLUSTER] for one in found if CLUSTER in one.tags}
        return Around(clusters - going, here - going, all_asked)

    def _verdict(self, one: ClusterResources, request: SweepRequest) -> Verdict:
        record = self._context.records.last_known(one.cluster)
        known = record is not None and record.token == one.token
        up = known and record is not None and record.state == "up"
        if one.billed_in and not known:
            at = settled_at(self._billing.rows_of(one.cluster, one.token), self._context.cloud.endpoint)
            if at > self._now():
                why = f"nothing carries its tag; a launch may still show until {at:%Y-%m-%d %H:%M:%S} UTC"
                return Verdict(goes=False, why=why)
        try:
            busy = record is not None and self._busy(one.cluster)
        except StateError as err:
            return Verdict(goes=False, why=err.message)
        return verdict(one, Here(known, up, busy=busy), request, self._now())

    def _busy(self, name: str) -> bool:
        path = self._context.home.cluster(name).root / "lease"
        return Lease(path, self._context.clock, self._context.owner).holder() is not None

    def _now(self) -> datetime:
        return self._context.clock.now()

    def _ender(self, default_region: str) -> Callable[[ClusterResources], CloudGpuError | None]:
        def end(one: ClusterResources) -> CloudGpuError | None:
            try:
                self._end(one, default_region)
            except CloudGpuError as err:
                self._context.emit(Note(f"{one.cluster}: {err.message}"))
                return err
            return None

        return end

    def _end(self, one: ClusterResources, default_region: str) -> None:
        known = self._context.records.last_known(one.cluster)
        if known is not None and known.token == one.token and known.state != "damaged":
            # Its journal knows more than its tags.
            self._unsaved += Teardown(self._context).delete(one.cluster, default_region).unsaved
            return
        self._end_unknown(one)

    def _end_unknown(self, one: ClusterResources) -> None:
        """End what no record of this home tells of, by its token; each region on its own.

        Raises:
            TeardownError: Something is left, or a region could not be asked.
        """
        begun_at = self._now()
        regions = [region for region in one.regions if region != _IAM]
        failures = RegionFailures(one.cluster, regions or one.regions)

        def whose(thing: TaggedResource) -> bool:
            return has_token(thing, one.token)

        strays, launches = TagSearch(self._context), UnansweredLaunches(self._context)
        rows = self._billing.rows_of(one.cluster, one.token)
        closing = Closing.begun(self._context, rows)
        done = strays.end_nodes(one.cluster, regions, whose, Recorded())
        failures.add_all(done.errors)
        self._billing.note_launched(rows, done.seen)
        launches.wait(unlaunched(rows), begun_at)
        strays.end_rest(one.cluster, one.regions, whose, failures)
        launches.note_ended(one.cluster, self._billing.rows_of(one.cluster, one.token), whose, failures)
        closing.close(
            row
            for row in self._billing.rows_of(one.cluster, one.token)
            if row.spending.region in regions and row.spending.region not in failures
        )
        failures.raise_any()


def _meant(one: ClusterResources | RetainedResource, request: SweepRequest) -> bool:
    """Whether the caller asked about what is this owner's."""
    return not request.owners or one.owner in request.owners


@dataclass(frozen=True)
class _Answer:
    """What one region, or IAM, holds."""

    tagged: Sequence[Tagged]
    outliving: tuple[RetainedResource, ...] = ()
    denied: str = ""
    """Why storage and images are unknown; empty where they are not."""
    unknown: str = ""
    """Why something else in it is unknown; empty where everything was answered."""


def check_regions(regions: Sequence[str], enabled: Sequence[str]) -> None:
    """Refuse a region that the account does not have.

    Raises:
        UsageError: Naming those that it has.
    """
    strange = [one for one in regions if one not in enabled]
    if strange:
        message = f"the account has no region {', '.join(strange)}"
        raise UsageError(message, hint=f"it has {', '.join(enabled)}")


def problem(seen: Seen, swept: Swept) -> TeardownError | None:
    """One error for all that is left or unknown; None when there is nothing of either."""
    unknown = [f"{region}: unknown: {why}" for region, why in seen.unknown]
    left = [f"{one.label}: {line}" for one, err in swept.failed for line in lines(err)]
    if not unknown and not left:
        return None
    silent = [region for region, _ in seen.unknown if region != _IAM]
    parts = [
        _are(sum(isinstance(one, ClusterResources) for one, _ in swept.failed), "cluster", "not confirmed gone"),
        _are(
            sum(isinstance(one, RetainedResource) for one, _ in swept.failed), "piece of storage", "not confirmed gone"
        ),
        _are(len(silent), "region", "silent") if silent else "IAM could not be asked" if unknown else "",
    ]
    message = " and ".join(part for part in parts if part)
    return TeardownError(message, left=[*left, *unknown], hint="`cloudgpu sweep` again; it looks at everything anew")


def _are(count: int, noun: str, what: str) -> str:
    if not count:
        return ""
    several = noun.replace("piece", "pieces") if noun.startswith("piece") else f"{noun}s"
    return f"{count} {noun} is {what}" if count == 1 else f"{count} {several} are {what}"
