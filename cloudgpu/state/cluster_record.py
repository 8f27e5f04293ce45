"""The record of a cluster in three parts: its identity, its placement and its lifecycle.

The fields of all three parts are at the top level of a cluster's file, where earlier versions also read and write them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from typing import Annotated, Any, Final, Literal

from cloudgpu import bounds
from cloudgpu.catalog.prices_and_quotas import ItemKind
from cloudgpu.decoding import decode_as
from cloudgpu.state.documents import StateFile
from cloudgpu.state.storage_records import AttachedStorage
from cloudgpu.targets import is_simulated

ClusterState = Literal["making", "up", "ending", "damaged"]
"""`damaged` is never written; it is the state of a record that cannot be read."""


@dataclass(frozen=True)
class _CostRow:
    """A row of `ClusterPlacement.beside`, as `CostItem.from_json` parses it."""

    kind: ItemKind
    count: int
    what: str
    usd: Annotated[str, bounds.usd] | None
    priced_on: date | None
    source: str
    per: Literal["hour", "once", "month"]
    whole_hours: bool


def _cost_row(row: Mapping[str, Any]) -> None:
    decode_as(_CostRow, row)


def _optional_amount(text: str) -> None:
    if text:
        bounds.parse_decimal(text)


@dataclass(frozen=True)
class ClusterIdentity:
    """The properties of a cluster that are known before it is launched and never change.

    Attributes:
        token: Unique token for the cluster's API calls; a later cluster with the same name has a different token.
        account: ID of the AWS account, or a fixed text for self-managed hosts.
        endpoint: ID of the rehearsal cloud in which the cluster runs; empty for every other target.
        made_by: `up`, or `train` for a cluster that is deleted with its run.
        run_id: The run for which `train` created the cluster; empty otherwise.
        engine: `direct` or `pulumi`.
    """

    name: str
    token: str
    owner: str
    team: str
    recipe: str
    target: str
    account: str
    endpoint: str
    created_at: datetime
    made_by: str
    run_id: str = ""
    engine: str = "direct"


@dataclass(frozen=True)
class ClusterPlacement:
    """The nodes and other resources of a cluster's last launch attempt, and the location of that attempt.

    Attributes:
        regions: Every region in which a launch was attempted, oldest first.
        beside: Other billed resources of the cluster, in the form of `CostItem.as_json`.
        config: Settings of the Pulumi program for the last candidate that was tried.
        storage: Storage that the cluster's nodes mount.
    """

    regions: tuple[str, ...] = ()
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    nodes: int = 0
    node_hourly_usd: Annotated[str, bounds.usd] = "0"
    beside: tuple[Annotated[Mapping[str, Any], _cost_row], ...] = ()
    gpu: str = ""
    gpus_per_node: int = 0
    image: str = ""
    image_parameter: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    instance_ids: tuple[str, ...] = ()
    storage: tuple[AttachedStorage, ...] = ()


@dataclass(frozen=True)
class ClusterLifecycle:
    """The state of a cluster, its expiry, and the budget that limits the expiry.

    Attributes:
        updated_at: Time at which the record was last written; None in records of the first version.
        max_usd: The recipe's `budget.max_usd`; empty if not set.
        first_expires_at: Expiry with which the nodes were launched; None if the expiry was never extended.
        confirmed_expires_at: Expiry that every node has confirmed, while an extension is in progress; None otherwise.
        nodes_unchecked: Whether no command has found all nodes healthy since the launch. False in records of earlier
            versions.
    """

    expires_at: datetime
    state: ClusterState = "making"
    updated_at: datetime | None = None
    max_usd: Annotated[str, _optional_amount] = ""
    first_expires_at: datetime | None = None
    confirmed_expires_at: datetime | None = None
    nodes_unchecked: bool = False


@dataclass(frozen=True)
class ClusterRecord:
    """The recorded state of a cluster."""

    identity: ClusterIdentity
    placement: ClusterPlacement
    lifecycle: ClusterLifecycle

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.identity.name

    @property
    def state(self) -> ClusterState:
        """State of the cluster when the record was last written."""
        return self.lifecycle.state

    @property
    def simulated(self) -> bool:
        """True if the cluster exists only in the rehearsal cloud."""
        return is_simulated(self.identity.target)

    def ended_with_cloud(self, ended: Mapping[str, datetime]) -> datetime | None:
        """Return when all of its nodes ended because the rehearsal cloud was stopped; None if they did not.

        Args:
            ended: Instance ID -> time of the stop that ended the instance.
        """
        stopped_at = last_end(self.placement.instance_ids, ended)
        if not self.simulated or stopped_at is None:
            return None
        written_at = self.lifecycle.updated_at or self.identity.created_at
        # `up` writes the record before a launch and adds the IDs afterwards, so nodes without an ID may be running.
        return None if self.state == "making" and written_at > stopped_at else stopped_at

    def in_state(self, state: ClusterState) -> "ClusterRecord":
        """Return a copy of the record with another state."""
        return replace(self, lifecycle=replace(self.lifecycle, state=state))


def last_end(instance_ids: Sequence[str], ended: Mapping[str, datetime]) -> datetime | None:
    """Return when the last of these instances ended; None if there are none, or if the end of one is not known."""
    times = [ended.get(instance_id) for instance_id in instance_ids]
    known = [at for at in times if at is not None]
    return max(known) if known and len(known) == len(times) else None


def _decode(content: Mapping[str, Any]) -> ClusterRecord:
    """Return the record in a file. Each of the three parts decodes its own fields and ignores all others."""
    return ClusterRecord(
        identity=decode_as(ClusterIdentity, content),
        placement=decode_as(ClusterPlacement, content),
        lifecycle=decode_as(ClusterLifecycle, content),
    )


def file_content(record: ClusterRecord) -> dict[str, Any]:
    """Return the content of a cluster's file: the fields of all three parts at the top level."""
    fields = {**asdict(record.identity), **asdict(record.placement), **asdict(record.lifecycle)}
    if not record.lifecycle.nodes_unchecked:
        del fields["nodes_unchecked"]  # a file that an earlier version wrote stays the same
    return fields


CLUSTER: Final = StateFile("cluster record", ClusterRecord, decode=_decode, encode=file_content)
