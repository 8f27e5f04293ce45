"""Values that describe a cloud account: its tagged resources, its storage, and what the caller may do.

The interface of the backends names them, so they import nothing of any cloud.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

from cloudgpu.catalog.prices_and_quotas import Quota
from cloudgpu.recipe.sources import STORAGE_KINDS

Kind = Literal[
    "fleet",
    "instance",
    "nat-gateway",
    "elastic-ip",
    "network-interface",
    "volume",
    "launch-template",
    "placement-group",
    "schedule-group",
    "instance-profile",
    "role",
    "security-group",
    "key-pair",
    "vpc-endpoint",
    "route-table",
    "subnet",
    "internet-gateway",
    "vpc",
]
"""Resource types, in the order in which the resources can be deleted."""

CLUSTER_TAG = "cloudgpu:cluster"
OWNER_TAG = "cloudgpu:owner"
TOKEN_TAG = "cloudgpu:token"  # noqa: S105 - the name of a tag
GLOBAL = "global"
"""Value of `TaggedResource.region` for resources that are not regional."""
Conditions = Mapping[str, Mapping[str, Any]]
PermissionState = Literal["ok", "failed", "unknown"]
STORAGE_TAG: Final = "cloudgpu:storage"
KEEP_TAG: Final = "cloudgpu:keep"
MADE_FOR_TAG: Final = "cloudgpu:made-for"
_KIND: Final = "cloudgpu:kind"
PartKind = Literal["link", "mount-target", "efs", "lustre", "ebs", "s3", "security-group"]
"""Types of storage resources, in the order in which they can be deleted."""
HOLDS_DATA: Final = frozenset(STORAGE_KINDS)


@dataclass(frozen=True)
class TaggedResource:
    """A resource with a cluster's tag.

    Attributes:
        since: Launch or creation time; None if the cloud does not report it.
        instance_type: Instance type; empty for other resources.
        market: `on-demand`, `spot` or `capacity-block` for instances; empty for other resources.
        public_addresses: Number of public IPv4 addresses that AWS assigned to an instance, without Elastic IPs, which
            are resources of their own; 0 for other resources.
        volume_type: Volume type such as `gp3`; empty for other resources.
        size_gib: Volume size; None for other resources.
    """

    kind: Kind
    id: str
    region: str
    name: str
    tags: Mapping[str, str]
    state: str = ""
    since: datetime | None = None
    instance_type: str = ""
    market: str = ""
    public_addresses: int = 0
    volume_type: str = ""
    size_gib: int | None = None

    @property
    def label(self) -> str:
        """Name for messages, such as `instance i-0abc (running) in us-east-1`."""
        state = f" ({self.state})" if self.state else ""
        return f"{self.kind} {self.id}{state} in {self.region}"


@dataclass(frozen=True)
class OwnImage:
    """A custom machine image or, if `id` is empty, a snapshot whose image no longer exists.

    `size_gib` is an upper bound on the billed size, because AWS bills only the blocks in use.
    """

    id: str
    name: str
    region: str
    state: str
    made_at: datetime
    size_gib: int
    snapshots: tuple[str, ...]
    tags: Mapping[str, str]

    @property
    def owner(self) -> str:
        """Owner according to the image's tags; empty if the owner tag is missing."""
        return self.tags.get(OWNER_TAG, "")


@dataclass(frozen=True)
class Identity:
    """Identity of the caller. `login` is the source of the caller's credentials, as messages show it."""

    account: str
    arn: str
    login: str


@dataclass(frozen=True)
class Grant:
    """A permission grant: actions on resources under one condition.

    Attributes:
        name: Statement ID (`Sid`) in the policy.
        purpose: Purpose of the permission, for example `launch instances`.
    """

    name: str
    purpose: str
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    conditions: Conditions = field(default_factory=dict)


@dataclass(frozen=True)
class PermissionResult:
    """Result for one action. `why` explains how the state was determined, or why the state is unknown."""

    action: str
    state: PermissionState
    why: str


@dataclass(frozen=True)
class QuotaLimit:
    """A vCPU quota in one region. `vcpus` is None if the cloud does not report the quota."""

    quota: Quota
    region: str
    vcpus: int | None


@dataclass(frozen=True)
class StoragePart:
    """An AWS resource that belongs to tagged storage.

    Attributes:
        size_gib: Stored or provisioned size, whichever is billed; None if unknown.
        deployment: Deployment type of a Lustre file system.
        attached: IDs of the instances to which a volume is attached.
        peers: IDs of the security groups from which a security group allows traffic; empty for other parts.
        zone: Zone of a volume, a Lustre file system or a mount target.
        vpc_id: VPC of a security group.
        ip: Address of a mount target.
        mount_name: Mount name of a Lustre file system.
    """

    kind: PartKind
    id: str
    region: str
    tags: Mapping[str, str]
    state: str = ""
    size_gib: Decimal | None = None
    created_at: datetime | None = None
    deployment: str = ""
    attached: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    zone: str = ""
    mount_name: str = ""
    vpc_id: str = ""
    ip: str = ""

    @property
    def ready(self) -> bool:
        """True if the data is available. A bucket is always ready, and a volume is ready even while in use."""
        return self.state.lower() in ("", "available", "in-use")

    @property
    def address(self) -> str:
        """Address for mounting the storage: a file system's DNS name, a volume's ID, or a bucket's name."""
        service = {"efs": "efs", "lustre": "fsx"}.get(self.kind, "")
        return f"{self.id}.{service}.{self.region}.amazonaws.com" if service else self.id

    @property
    def label(self) -> str:
        """Name for messages, such as `efs fs-0abc (available) in us-east-1`."""
        state = f" ({self.state})" if self.state else ""
        return f"{self.kind} {self.id}{state} in {self.region}"


@dataclass(frozen=True)
class TaggedStorage:
    """Storage that was found by its tags, with all its parts.

    Attributes:
        users: Instances that may use the storage, as `i-0abc (cluster demo)`; None if unknown.
    """

    name: str
    token: str
    region: str
    parts: tuple[StoragePart, ...]
    users: tuple[str, ...] | None = ()

    @property
    def data(self) -> StoragePart | None:
        """The part that contains the data; None if it was deleted or never created."""
        return next((part for part in self.parts if part.kind in HOLDS_DATA), None)

    def tag(self, key: str) -> str:
        """Return a tag's value from the first part that has the tag, or an empty string if no part has it."""
        return next((part.tags[key] for part in self.parts if key in part.tags), "")

    @property
    def kind(self) -> str:
        """Storage kind: `efs`, `lustre`, `ebs` or `s3`; empty if the tag is missing."""
        return self.tag(_KIND)

    @property
    def made_for(self) -> str:
        """Cluster that the storage was created for and is deleted with; empty for named storage."""
        return self.tag(MADE_FOR_TAG)

    @property
    def security_group_id(self) -> str:
        """Security group that a node needs to mount the storage; empty if none is needed."""
        return next((part.id for part in self.parts if part.kind == "security-group"), "")

    @property
    def vpc_id(self) -> str:
        """VPC from which a file system can be mounted; empty for other storage."""
        return next((part.vpc_id for part in self.parts if part.kind == "security-group"), "")

    @property
    def mount_zones(self) -> tuple[str, ...]:
        """Zones with a mount target, through which an EFS file system can be mounted; empty if one zone is unknown."""
        zones = {part.zone for part in self.parts if part.kind == "mount-target"}
        return () if "" in zones else tuple(sorted(zones))

    def mount_address(self, zone: str) -> str:
        """Return the address from which nodes in a zone mount the storage; empty if no data exists.

        EFS is mounted from the IP address of the zone's mount target, if known: its name resolves only in a VPC with
        DNS hostnames and with Amazon's DNS server, which many VPCs of companies do not have.
        """
        targets = [part.ip for part in self.parts if part.kind == "mount-target" and part.zone == zone and part.ip]
        return targets[0] if targets else self.data.address if self.data else ""

    @property
    def disposable(self) -> bool:
        """True if the tags state that deleting the storage may also delete its data."""
        return self.tag(KEEP_TAG) == "false"


def created_at(found: Iterable[TaggedStorage]) -> datetime | None:
    """Return when the first resource that contains data was created, by AWS's clock; None if unknown."""
    times = [part.created_at for stored in found for part in stored.parts if part.kind in HOLDS_DATA]
    return min((at for at in times if at is not None), default=None)
