"""Interfaces of the resources that a search for a cluster's tag returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime


class TaggedResource(Protocol):
    """A resource with a cluster's tag."""

    @property
    def kind(self) -> str:
        """Resource type: `instance`, `volume`, `security-group` ..."""

    @property
    def id(self) -> str:
        """Resource ID assigned by the cloud."""

    @property
    def region(self) -> str:
        """Region of the resource; `global` for IAM."""

    @property
    def tags(self) -> Mapping[str, str]:
        """All tags of the resource."""


class BillableResource(TaggedResource, Protocol):
    """A tagged resource with the properties that determine its price."""

    @property
    def state(self) -> str:
        """State reported by the cloud; empty for resources without a state."""

    @property
    def since(self) -> datetime | None:
        """Launch or creation time; None if the cloud does not report one."""

    @property
    def instance_type(self) -> str:
        """Instance type; empty for other resources."""

    @property
    def market(self) -> str:
        """Market of an instance, such as `on-demand` or `spot`; empty for other resources."""

    @property
    def public_addresses(self) -> int:
        """Number of public IPv4 addresses that AWS assigned to an instance, without Elastic IPs; 0 for others."""

    @property
    def volume_type(self) -> str:
        """Volume type such as `gp3`; empty for other resources."""

    @property
    def size_gib(self) -> int | None:
        """Size of a volume; None for other resources."""
