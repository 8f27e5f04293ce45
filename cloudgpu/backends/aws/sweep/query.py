"""Search the account, and read the ledger and the records, for a sweep. Changes nothing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cloudgpu.aws.ec2.tagged_types import CLUSTER_TAG, GLOBAL
from cloudgpu.backends.aws.ports import Cloud
from cloudgpu.backends.aws.sweep.findings import LocalCluster, RegionSearch, SweepFindings
from cloudgpu.backends.aws.sweep.ledger_only import is_open
from cloudgpu.backends.base import ImageStore
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.events import Emit
from cloudgpu.backends.sweep.retained_resources import RetainedResource, retained_image, retained_storage
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, StateError, UsageError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Note, report_count
from cloudgpu.state.record_store import RecordStore
from cloudgpu.workers import Workers

_AT_ONCE = 8
"""Maximum number of regions searched at the same time."""


@dataclass(frozen=True)
class SweepQuery:
    """Collects the findings of a sweep.

    Attributes:
        is_busy: Function that returns whether another command is working on the cluster with this name. It raises
            StateError if the cluster's lease cannot be read.
    """

    cloud: Cloud
    images: ImageStore
    ledger: CostLedger
    records: RecordStore
    is_busy: Callable[[str], bool]
    emit: Emit

    def find(self, regions: Sequence[str]) -> SweepFindings:
        """Search these regions, or by default every enabled region and IAM. The result includes failed searches."""
        to_search = self._regions_to_search(regions)
        self.emit(
            Note(f"searching {', '.join(to_search) if regions else f'{len(to_search)} regions and IAM'}", detail=True)
        )
        places = to_search if regions else (*to_search, GLOBAL)
        with (
            report_count(self.emit, "searching", len(places), "places") as step,
            Workers(_AT_ONCE, "sweep") as pool,
        ):

            def search(place: str) -> RegionSearch:
                found = self._search(place)
                step()
                return found

            searches = tuple(pool.map(search, places))
        rows = self._rows()
        tagged = (resource.tags.get(CLUSTER_TAG, "") for search in searches for resource in search.tagged)
        return SweepFindings(
            regions=to_search,
            everywhere=not regions,
            searches=searches,
            endpoint=self.cloud.endpoint,
            rows=rows,
            local=self._local({*tagged, *(row.spending.cluster for row in rows)}),
            recorded=frozenset(record.name for record in self.records.clusters()),
        )

    def _regions_to_search(self, regions: Sequence[str]) -> tuple[str, ...]:
        """Return the regions to search: the requested regions, or all enabled regions."""
        try:
            enabled = tuple(self.cloud.regions())
        except CloudError:
            if not regions:
                raise
            return tuple(dict.fromkeys(regions))
        check_regions(regions, enabled)
        return tuple(dict.fromkeys(regions)) or enabled

    def _search(self, region: str) -> RegionSearch:
        """Search one region. If one request fails, the results of the successful requests are still returned."""
        result = self.cloud.search_all_clusters(region)
        unknown = next((err.message for err in result.failures.values()), "")
        denied = ""
        retained: tuple[RetainedResource, ...] = ()
        try:
            retained = () if region == GLOBAL else self._retained(region)
        except AuthError as err:
            # Users without storage permissions may still sweep clusters.
            denied = err.message
        except CloudGpuError as err:
            unknown = unknown or err.message
        return RegionSearch(region, result.found, retained, denied, unknown)

    def _retained(self, region: str) -> tuple[RetainedResource, ...]:
        storage = [retained_storage(stored) for stored in self.cloud.storage().found(region)]
        return (*storage, *(retained_image(image) for image in self.images.found(region)))

    def _rows(self) -> tuple[LedgerEntry, ...]:
        """Return all rows, including closed ones, of this account's clusters that have an open row for nodes."""
        opened = [row for row in self.ledger.entries(state="open") if is_open(row)]
        if not opened:
            return ()  # avoids an unnecessary request for the account ID
        account = (self.cloud.target, self.cloud.account(), self.cloud.endpoint)
        names = dict.fromkeys(row.spending.cluster for row in opened if _account(row) == account)
        rows = (row for name in names for row in self.ledger.entries(cluster=name))
        return tuple(row for row in rows if _account(row) == account)

    def _local(self, names: Iterable[str]) -> dict[str, LocalCluster]:
        """Return this state home's records of the clusters with these names."""
        records = {name: self.records.last_known(name) for name in sorted(names)}
        local: dict[str, LocalCluster] = {}
        for name, record in records.items():
            if record is not None:
                busy, problem = self._lease(name)
                local[name] = LocalCluster(record.identity.token, record.state == "up", busy, problem)
        return local

    def _lease(self, name: str) -> tuple[bool, str]:
        """Return whether another command is working on the cluster, and the reason if this is unknown."""
        try:
            return self.is_busy(name), ""
        except StateError as err:
            return False, err.message


def check_regions(regions: Sequence[str], enabled: Sequence[str]) -> None:
    """Reject regions that are not enabled in the account."""
    unknown = [region for region in regions if region not in enabled]
    if unknown:
        message = f"regions not enabled in this account: {', '.join(unknown)}"
        raise UsageError(message, hint=f"enabled regions: {', '.join(enabled)}")


def _account(row: LedgerEntry) -> tuple[str, str, str]:
    return row.spending.target, row.spending.account, row.spending.endpoint
