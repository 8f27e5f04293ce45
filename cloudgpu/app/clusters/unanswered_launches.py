"""Launches that were never answered, because the process that made the call was killed.

A row of the ledger is opened before the call and closed at zero only when it is certain that the call made nothing:
an empty search proves that only once everything that such a call makes would have shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.app.clusters.region_failures import RegionFailures
from cloudgpu.app.clusters.tagged_resources import TagSearch, Whose
from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.context import CloudContext
from cloudgpu.engine.direct.unanswered_delays import delays_at, launch_shown_by
from cloudgpu.ledger.entry import Entry
from cloudgpu.run.progress import Note


@dataclass(frozen=True)
class UnansweredLaunches:
    """The launches of one cluster whose answer nobody wrote down."""

    context: CloudContext

    def wait(self, rows: Sequence[Entry], now: datetime) -> bool:
        """Wait until a launch that these rows were opened for, and whose caller is gone, shows in a search by tag.

        Returns:
            False if there was nothing to wait for.
        """
        if not rows:
            return False
        until = shown_by(rows, now, self.context.cloud.endpoint)
        left_s = (until - self.context.clock.now()).total_seconds()
        if left_s > 0:
            self.context.emit(
                Note(f"waiting until {until:%H:%M:%S} UTC: a launch that was never answered may show up to then")
            )
            self.context.clock.sleep(left_s)
        return True

    def note_ended(self, name: str, rows: Sequence[Entry], whose: Whose, failures: RegionFailures) -> None:
        """Write down nodes whose launch was never answered and that have ended since: they cost what they ran."""
        doubtful = {row.spending.region for row in unlaunched(rows)}
        asked = [region for region in failures.asked if region in doubtful and region not in failures]
        if asked:
            found = TagSearch(self.context).search(name, asked, whose)
            failures.add_all(found.failures)
            ClusterBilling(self.context).note_launched(rows, [*found.found, *found.terminated])


def shown_by(rows: Sequence[Entry], now: datetime, endpoint: str) -> datetime:
    """Return when the last of the launches that these rows were opened for is found by its tags, if it was made."""
    delays = delays_at(endpoint)
    return max(launch_shown_by(row.spending.opened_at, now, delays) for row in rows)


def unlaunched(rows: Iterable[Entry]) -> list[Entry]:
    """Return the open rows of which nobody knows whether anything was launched for them."""
    return [row for row in rows if row.state == "open" and row.launched_at is None]
