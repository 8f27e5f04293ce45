"""`down`: end a cluster and say so only when the cloud confirms it."""

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.app.happenings import Say
from cloudgpu.app.ports import Cloud, Ledger
from cloudgpu.app.records import ClusterRecord, Records
from cloudgpu.clock import Clock
from cloudgpu.errors import StateError, TeardownError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.paths import Home, bundled
from cloudgpu.provision.engine import Stack
from cloudgpu.provision.lease import Lease
from cloudgpu.run.progress import Note


@dataclass(frozen=True)
class Ended:
    """What `down` found and confirmed.

    Attributes:
        known: Whether this home had a record of the cluster.
        instances: Instances that were ended, as recorded.
        strays: Things found by tag that the journal did not know.
        usd: What the cluster cost in all; simulated or not as `simulated` says.
    """

    cluster: str
    known: bool
    instances: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    usd: Decimal = Decimal(0)
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        """The documented `down --json` form; `left` is always empty, for otherwise `down` fails."""
        return {
            "cluster": self.cluster,
            "known": self.known,
            "instances_ended": list(self.instances),
            "strays_ended": list(self.strays),
            "usd": str(self.usd),
            "simulated": self.simulated,
            "left": [],
        }


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


def check_identity(record: ClusterRecord, cloud: Cloud) -> None:
    """Refuse to take another account's or endpoint's emptiness for this cluster's end.

    Raises:
        StateError: The cluster was made under another account or endpoint.
    """
    account, endpoint = cloud.account(), cloud.endpoint
    if (record.account, record.endpoint) != (account, endpoint):
        there = f"account {record.account}{' at ' + record.endpoint if record.endpoint else ''}"
        here = f"account {account}{' at ' + endpoint if endpoint else ''}"
        message = f"cluster {record.name} was made in {there}, but the present credentials belong to {here}"
        raise StateError(message, hint="use the credentials and the --on that it was made with")


class Teardown:
    """Ends clusters. One object for one cloud and one home."""

    def __init__(  # noqa: PLR0917
        self, cloud: Cloud, ledger: Ledger, records: Records, home: Home, clock: Clock, owner: str, say: Say
    ) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._records = records
        self._home = home
        self._clock = clock
        self._owner = owner
        self._say = say

    def down(self, name: str, default_region: str) -> Ended:
        """End a cluster, known or only found by its tag; nothing to end is success.

        Raises:
            TeardownError: Something is left, or could not be asked about.
            StateError: The cluster belongs to another account or endpoint.
            BusyError: Another process is at this cluster.
        """
        with Lease(self._home.cluster(name).root / "lease", self._clock, self._owner).hold():
            record = self._records.cluster(name)
            if record is not None:
                return self.end(record)
            strays = self._sweep(name, (default_region,))
        self._records.forget_cluster(name)
        return Ended(name, known=False, strays=strays, simulated=self._cloud.target == "rehearsal")

    def end(self, record: ClusterRecord) -> Ended:
        """End a recorded cluster; the caller holds its lease.

        Raises:
            TeardownError: Something is left.
        """
        record = self._records.cluster(record.name) or record
        check_identity(record, self._cloud)
        ended_at = self._end_of_bill(record)
        record = self._records.save_cluster(replace(record, state="ending"), self._clock.now())
        for region in record.regions:
            self._cloud.engine(record).destroy(stack_of(self._home, record, region), self._say)
        strays = self._sweep(record.name, record.regions)
        usd = self._close_entries(record, ended_at or self._clock.now())
        self._records.forget_cluster(record.name)
        return Ended(
            record.name,
            known=True,
            instances=record.instance_ids,
            strays=strays,
            usd=usd,
            simulated=record.simulated,
        )

    def end_region(self, record: ClusterRecord, region: str) -> None:
        """Empty one region before another is tried."""
        self._cloud.engine(record).destroy(stack_of(self._home, record, region), self._say)

    def _sweep(self, name: str, regions: tuple[str, ...]) -> tuple[str, ...]:
        """Search by tag, end what is found, search again.

        Raises:
            TeardownError: The second search is not empty.
        """
        if not regions:
            return ()
        found = self._cloud.search(name, regions)
        if not found:
            return ()
        self._say(Note(f"found by tag and not in the journal: {', '.join(thing.id for thing in found)}"))
        self._cloud.release(found)
        left = self._cloud.search(name, regions)
        if left:
            lines = [f"{thing.kind} {thing.id} in {thing.region}" for thing in left]
            message = f"cluster {name} is not gone: {'; '.join(lines)}"
            raise TeardownError(message, left=lines, hint=f"`cloudgpu down {name}` again; it goes on where it stopped")
        return tuple(f"{thing.kind} {thing.id}" for thing in found)

    def _end_of_bill(self, record: ClusterRecord) -> datetime | None:
        """When the nodes ended by themselves at expiry, the bill stopped then, not now."""
        if not record.instance_ids or self._clock.now() < record.expires_at:
            return None
        states = self._cloud.nodes_alive(record.region, record.instance_ids)
        return record.expires_at if all(state == "terminated" for state in states.values()) else None

    def _close_entries(self, record: ClusterRecord, at: datetime) -> Decimal:
        """Close every open row of the cluster's name; what this cluster cost, USD."""
        for entry in self._ledger.entries(cluster=record.name, state="open"):
            self._ledger.close(entry.spending.entry_id, at)
        own = [e for e in self._ledger.entries(cluster=record.name) if e.spending.entry_id.startswith(record.token)]
        return sum((entry_usd(entry, at) for entry in own), Decimal(0))
