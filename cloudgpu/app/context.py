"""Where one command works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.app.events import Emit
    from cloudgpu.app.host_ground import HostsBackend
    from cloudgpu.app.ports import Backend, Cloud, Ledger
    from cloudgpu.app.records import Records
    from cloudgpu.clock import Clock
    from cloudgpu.paths import Home


@dataclass(frozen=True)
class Context:
    """What every use case works with: one place, one ledger, one home, one clock, one person, one listener.

    Attributes:
        owner: Who asks.
        say: Who hears what happens meanwhile.
    """

    cloud: Backend
    ledger: Ledger
    records: Records
    home: Home
    clock: Clock
    owner: str
    emit: Emit


@dataclass(frozen=True)
class CloudContext(Context):
    """The same where nodes are bought of a cloud."""

    cloud: Cloud


@dataclass(frozen=True)
class HostsContext(Context):
    """The same where nodes are hosts of one's own."""

    cloud: HostsBackend
