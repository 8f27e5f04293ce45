"""The collaborators of the use cases, as small Protocols; `cli/context/wiring.py` decides what stands behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cloudgpu.state.identity import BackendIdentity

if TYPE_CHECKING:
    # Only types: a command that reads records must not pay for the recipe schema and the SSH room.
    from datetime import datetime
    from pathlib import Path

    from cloudgpu.aws.ec2.billing_times import Lifetime
    from cloudgpu.aws.ec2.tagged_types import SearchResult
    from cloudgpu.aws.storage.stored import Stored
    from cloudgpu.backends.events import Emit
    from cloudgpu.catalog.quotas import Quota
    from cloudgpu.engine.base import Engine
    from cloudgpu.launch.inventory import Inventory, Node
    from cloudgpu.ledger.entry import Entry, EntryState, Part, Spending
    from cloudgpu.ledger.report import By, Report
    from cloudgpu.plan.plan import Quotes
    from cloudgpu.plan.reservations import ReservationLookup
    from cloudgpu.plan.survey import DatasetSeen, NamedKind, Presence
    from cloudgpu.run.files import RemoteFile, Service
    from cloudgpu.ssh.base import Host
    from cloudgpu.state.records import ClusterRecord
    from cloudgpu.state.storage_records import StorageRecord


class TaggedResource(Protocol):
    """Something that carries a cluster's tag."""

    @property
    def kind(self) -> str:
        """`instance`, `volume`, `security-group` ..."""

    @property
    def id(self) -> str:
        """The cloud's own id."""

    @property
    def region(self) -> str:
        """Where it is; `global` for IAM."""

    @property
    def tags(self) -> Mapping[str, str]:
        """All of its tags."""


class Tagged(TaggedResource, Protocol):
    """The same with what it costs by."""

    @property
    def state(self) -> str:
        """The cloud's own word for it; empty where there is none."""

    @property
    def since(self) -> datetime | None:
        """When it was launched or made; None where the cloud does not say."""

    @property
    def instance_type(self) -> str:
        """Of an instance; empty otherwise."""

    @property
    def market(self) -> str:
        """Of an instance; empty otherwise."""

    @property
    def volume_type(self) -> str:
        """`gp3` ... of a volume; empty otherwise."""

    @property
    def size_gib(self) -> int | None:
        """Of a volume; None otherwise."""


class Backend(BackendIdentity, Protocol):
    """What a run needs of the place it runs in, whether its nodes were bought or are hosts of one's own."""

    def nodes_alive(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Instance id -> state; `terminated` for one that is not there any more."""

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL unless it is there already; returns bytes sent."""

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List an S3 URL with presigned addresses."""

    def bucket_service(self, url: str) -> Service:
        """Which service has the bucket of an address, for nodes that ask it themselves."""


class Cloud(Backend, Protocol):
    """One cloud, as the use cases see it."""

    def images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """The machine image that each (SSM parameter, region) names now; what cannot be read is left out."""

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Which zones offer each (instance type, region) now."""

    @property
    def engine_asked_for(self) -> str:
        """The engine that the user named, `direct` or `pulumi`; empty when nobody did."""

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """A capacity reservation as the first of these regions that has it describes it."""

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Region -> Elastic IPs that the account may still have there; what cannot be read is left out."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Key of a quota -> vCPUs that the account may run there."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """VCPUs that run there now by quota, whoever launched them; one of which nothing runs is left out."""

    def engine(self, record: ClusterRecord) -> Engine:
        """The engine that carries this cluster's program out here, with its tags and identity."""

    def caller_cidr(self) -> str:
        """The one address that may reach port 22, as `a.b.c.d/32`."""

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys."""

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """When instances began and ended, by id; one that the cloud does not list (any more) is left out."""

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """When the NAT gateways and Elastic IPs of a cluster began and ended, as far as the cloud still knows."""

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[TaggedResource]:
        """Return everything that carries the cluster's tag in these regions and in IAM; all of them have to answer."""

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search each of these regions (`global`: IAM) for the cluster's tag, whatever happens in another."""

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for the tag of any cluster."""

    def terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        """Terminate instances by their ids and wait until the cloud confirms it."""

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set these tags on instances, volumes and interfaces that do not have them yet."""

    def inspector(self) -> Inspector:
        """Who looks at what a recipe names here."""

    def storage(self) -> StorageCloud:
        """Its storage."""

    def release(self, found: Sequence[TaggedResource]) -> None:
        """End what a search found, and wait until it is confirmed."""


class Ledger(Protocol):
    """The record of what costs money."""

    def open(self, spending: Spending) -> None:
        """Durable before it returns; the same entry id twice is one row."""

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """The call was answered with these instances."""

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """The nodes may live until then."""

    def close(self, entry_id: str, at: datetime) -> None:
        """The cloud confirmed the end."""

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """A part of an open entry ended; the first end counts."""

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """A run began to use a cluster."""

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """A run ended."""

    def entries(
        self, *, cluster: str | None = None, state: EntryState | None = None, since: datetime | None = None
    ) -> tuple[Entry, ...]:
        """Rows, oldest first."""

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> Report:
        """The bill."""


Connect = Callable[["Sequence[Node]", "Emit"], "list[Host]"]
"""Connect to every node, waiting while they boot; all or a typed error."""


class StorageCloud(BackendIdentity, Protocol):
    """One target, as these use cases see it."""

    @property
    def engine_asked_for(self) -> str:
        """The engine that the user named; empty when nobody did."""

    def engine(self, record: StorageRecord) -> Engine:
        """The engine that carries this storage's program out, with its tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """What carries storage's tags in a region: of one name, or of every name."""

    def empty(self, one: Stored) -> None:
        """Delete what its bucket holds, where it has one."""

    def end(self, one: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume, the so-maniest of this instance; attached already, it is left alone."""


class Inspector(Protocol):
    """What can be looked at in an account. A refusal is `unknown`, with the reason."""

    def dataset(self, url: str) -> DatasetSeen:
        """What lies under an address in S3."""

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Whether there is such a thing in a region, and why nobody knows; a role belongs to no region."""

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""
