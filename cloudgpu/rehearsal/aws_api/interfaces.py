"""Interfaces and values that the rehearsal cloud's API rules share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions
from cloudgpu.rehearsal.faults.node_faults import NodeFault
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.values import NodeReport, NodeSpec, Opened, PoweredOff, RoleCredentials, StartedNode
from cloudgpu.rehearsal.server.sigv4 import AccessKey
from cloudgpu.rehearsal.simulated_time import SimulatedTime


class NodeHost(Protocol):
    """The node host, which is the process that runs the nodes. `NodeHostClient` implements this interface."""

    def start(self, spec: NodeSpec) -> StartedNode:
        """Boot a node unless it is already running. Return the address, port and host key of its SSH server."""

    def stop(self, instance_id: str) -> None:
        """Stop a node; return once all its processes have exited and its disk has been deleted."""

    def power_off(self, instance_id: str) -> None:
        """Kill a node's processes but keep its disk."""

    def reboot(self, instance_id: str) -> None:
        """Reboot a node from the same disk."""

    def forget(self, instance_id: str) -> None:
        """Stop a node and remove its record, console and disk."""

    def set_credentials(self, credentials: RoleCredentials) -> None:
        """Set the credentials that the metadata service returns to nodes with a role."""

    def list(self) -> tuple[NodeReport, ...]:
        """Return a report on every node."""

    def console(self, instance_id: str) -> bytes:
        """Return the console output of a node."""

    def events(self) -> Iterator[PoweredOff]:
        """Yield an event whenever a node powers itself off."""

    def advance(self, seconds: float) -> None:
        """Advance the clock of power-off timers."""

    def set_access(self, instance_id: str, opened: Opened) -> None:
        """Set whether callers can reach a node by SSH, whether it can reach the internet, and what it may mount."""

    def record_image_packages(self, instance_id: str, image_id: str) -> None:
        """Record a node's installed packages as the packages of an image created from the node."""

    def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace all node faults."""

    def close(self) -> None:
        """Stop every node and the node host, and start no other."""


class InstanceWorker(Protocol):
    """A worker that applies instance changes to nodes in the background. `NodeKeeper` implements this interface.

    Rules call it while they hold `Parts.lock`.
    """

    def boot(self, region: str, instance_ids: list[str]) -> None:
        """Boot the nodes of pending instances."""

    def end(self, region: str, instance_ids: list[str]) -> None:
        """Stop the nodes of instances that are terminating or stopping."""

    def reboot(self, region: str, instance_ids: list[str]) -> None:
        """Reboot the nodes of running instances."""


@dataclass(frozen=True)
class Parts:
    """The components of one server.

    `lock` guards moto's backends and all records, `role` is the nodes' access key, and `time` is the clock for
    schedules, which `rehearsal advance` moves.
    """

    files: RehearsalFiles
    clock: Clock
    market: Market
    host: NodeHost
    lock: "RLock"
    role: AccessKey
    behaviour: ActiveConditions
    time: SimulatedTime


@dataclass(frozen=True)
class World(Parts):
    """The components of the server, and the worker for its nodes, which API rules use."""

    keeper: InstanceWorker
