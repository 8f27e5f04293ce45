"""The context in which a use case runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.backends.base import Backend, Cloud, CostLedger
    from cloudgpu.backends.events import Emit
    from cloudgpu.clock import Clock
    from cloudgpu.paths import Home
    from cloudgpu.state.cluster_and_run_records import RecordStore


@dataclass(frozen=True)
class Context:
    """The context of one command: its backend, ledger, records, state home, clock, owner and event sink.

    Attributes:
        cloud: The backend, for any target. Use cases that launch instances need a `CloudContext` instead.
        owner: Name of the calling user.
        emit: Function that receives progress events.
    """

    cloud: Backend
    ledger: CostLedger
    records: RecordStore
    home: Home
    clock: Clock
    owner: str
    emit: Emit


@dataclass(frozen=True)
class CloudContext(Context):
    """A context whose backend launches instances."""

    cloud: Cloud
