"""Tagged resources and machine images of an account, and the tags by which they are found."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

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
