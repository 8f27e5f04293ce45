"""Handle launch calls whose responses were lost because the calling process was killed.

A ledger row is opened before each call. The row is closed at zero cost only if a search finds nothing once enough time
has passed for the resources of the call to appear.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.backends.aws.clusters.region_failures import RegionFailures
from cloudgpu.backends.aws.clusters.row_restoration import record_unanswered_launches
from cloudgpu.backends.aws.clusters.verified_deletion import ResourceFilter, TagSearch
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.engine.direct.unanswered_delays import delays_at, launch_visible_by
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Note


@dataclass(frozen=True)
class UnansweredLaunches:
    """Handles a cluster's launches whose responses were not recorded."""

    context: CloudContext

    def wait(self, rows: Sequence[LedgerEntry], now: datetime) -> bool:
        """Wait until a tag search would find the nodes of the launches for which these rows were opened.

        Args:
            rows: Rows whose launch is not confirmed.
            now: Time at which the launching process is known to have exited.

        Returns:
            False if `rows` is empty, so that there was nothing to wait for.
        """
        if not rows:
            return False
        until = latest_visible_at(rows, now, self.context.cloud.endpoint)
        remaining_s = (until - self.context.clock.now()).total_seconds()
        if remaining_s > 0:
            self.context.emit(
                Note(f"waiting until {until:%H:%M:%S} UTC, because an interrupted launch may still appear")
            )
            self.context.clock.sleep(remaining_s)
        return True

    def record_terminated_nodes(
        self, name: str, rows: Sequence[LedgerEntry], whose: ResourceFilter, failures: RegionFailures
    ) -> None:
        """Record nodes whose launch response was lost, even if they have terminated, so that they are billed."""
        unconfirmed = {row.spending.region for row in unconfirmed_launches(rows)}
        regions = [region for region in failures.asked if region in unconfirmed and region not in failures]
        if regions:
            result = TagSearch(self.context).search(name, regions, whose)
            failures.add_all(result.failures)
            record_unanswered_launches(self.context, rows, [*result.found, *result.terminated])


def latest_visible_at(rows: Sequence[LedgerEntry], now: datetime, endpoint: str) -> datetime:
    """Return the time by which a tag search would find the nodes of every launch for these rows."""
    delays = delays_at(endpoint)
    return max(launch_visible_by(row.spending.opened_at, now, delays) for row in rows)


def unconfirmed_launches(rows: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the open rows for which it is unknown whether anything was launched."""
    return [row for row in rows if row.state == "open" and row.launched_at is None]
