"""What the rules of one rehearsal cloud share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Protocol

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.aws_api.ec2.market import Market
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions
from cloudgpu.rehearsal.faults.node_faults import NodeFault
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.values import NodeReport, Opened, PoweredOff, RoleCredentials, StartedNode
from cloudgpu.rehearsal.server.access_keys import AccessKey
from cloudgpu.rehearsal.simulated_time import SimulatedTime


class NodeHost(Protocol):
    """The process that carries the nodes; `cloudgpu.rehearsal.nodes.host_client` has the real one."""

    def start(self, spec: NodeSpec) -> StartedNode:
        """Boot a node; the same instance id again adopts it."""

    def stop(self, instance_id: str) -> None:
        """End a node; returns when everything of it is dead and its disk is gone."""

    def power_off(self, instance_id: str) -> None:
        """End a node's processes and keep its disk."""

    def reboot(self, instance_id: str) -> None:
        """Boot it again from the same disk."""

    def forget(self, instance_id: str) -> None:
        """Remove its record and console."""

    def give_credentials(self, credentials: RoleCredentials) -> None:
        """Set the keys that nodes with a role get from their metadata service."""

    def list(self) -> tuple[NodeReport, ...]:
        """Every node that the host knows."""

    def console(self, instance_id: str) -> bytes:
        """What the node printed."""

    def events(self) -> Iterator[PoweredOff]:
        """Power-offs, as they come."""

    def advance(self, seconds: float) -> None:
        """Move the clock of power-off timers."""

    def put_reach(self, instance_id: str, opened: Opened) -> None:
        """Let a node know who reaches it, whether it reaches the internet, and what it may mount."""

    def keep_image(self, instance_id: str, image_id: str) -> None:
        """Let nodes of this image begin with what is installed on a node now."""

    def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace what goes wrong with nodes."""

    def shutdown(self) -> None:
        """End every node and the host itself."""


class Keeper(Protocol):
    """Makes nodes follow instances; called with `lock` held, works later."""

    def boot(self, region: str, instance_ids: list[str]) -> None:
        """Start the nodes of pending instances."""

    def end(self, region: str, instance_ids: list[str]) -> None:
        """End the nodes of instances that shut down or stop."""

    def reboot(self, region: str, instance_ids: list[str]) -> None:
        """Boot the nodes of running instances again."""


@dataclass(frozen=True)
class Parts:
    """The parts of one server. `lock` guards moto's back ends and every record; `role` is the nodes' key.

    `time` is what schedules follow.
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
class World:
    """What the rules may use."""

    clock: Clock
    market: Market
    host: NodeHost
    keeper: Keeper
    behaviour: ActiveConditions
