"""The context of operations on self-managed hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Context

if TYPE_CHECKING:
    from cloudgpu.backends.hosts.backend import HostsBackend


@dataclass(frozen=True)
class HostsContext(Context):
    """A context whose nodes are self-managed hosts.

    Attributes:
        hosts: The backend, which connects to the hosts of the inventory.
    """

    hosts: HostsBackend
