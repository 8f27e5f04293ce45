"""Start, adopt and stop all nodes of one state home. A lock per node serializes the calls for that node."""

import asyncio
import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import asyncssh

from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.faults.node_faults import FaultInjector, NodeFault, NodeFaults
from cloudgpu.rehearsal.layout import LIMIT_DAYS, shift_within_limits
from cloudgpu.rehearsal.nodes import addresses, namespace_script, namespaces, record
from cloudgpu.rehearsal.nodes.images import Images
from cloudgpu.rehearsal.nodes.node import HostServices, SimulatedNode
from cloudgpu.rehearsal.nodes.processes import NodeRuntime, PlainBody
from cloudgpu.rehearsal.nodes.record import NodePaths, SimulatedNodeRecord
from cloudgpu.rehearsal.nodes.servers.metadata import hostname
from cloudgpu.rehearsal.nodes.servers.power_commands import Action
from cloudgpu.rehearsal.nodes.shared_storage import SharedFolderStore
from cloudgpu.rehearsal.nodes.values import NodeReport, NodeSpec, Opened, PoweredOff, RoleCredentials, StartedNode
from cloudgpu.rehearsal.nodes.visible_paths import VisiblePaths

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class HostedNodes:
    """The nodes of one state home."""

    def __init__(self, directory: Path, surroundings: VisiblePaths, isolation: str, offset_s: float = 0.0) -> None:
        """Prepare without adopting nodes.

        Args:
            directory: Directory of the node host; each node has a subdirectory in `instances`.
            surroundings: Paths on this machine that nodes may see.
            isolation: `cage` or `plain`.
            offset_s: Offset of the timer clock from the machine's clock, in seconds.
        """
        self._instances = directory / "instances"
        self._directory = directory
        self._surroundings = surroundings
        self._isolation = isolation
        self._mounts = namespace_script.machine_mounts(_mount_table())
        self._nodes: dict[str, SimulatedNode] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._fault_injector = FaultInjector()
        self._shared = SharedFolderStore(directory)
        self._images = Images(directory / "images.json")
        self._endings: set[asyncio.Task[None]] = set()
        self.offset_s = offset_s
        self.credentials: RoleCredentials | None = None
        self.changed: Callable[[], None] = lambda: None
        """Function that is called after a node has powered itself off."""

    async def adopt(self) -> None:
        """Adopt an earlier host process's nodes, and delete nodes without a usable record.

        Reboot a node that was running if its init has exited or its boot did not finish.
        """
        self._instances.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in sorted(self._instances.iterdir()):
            try:
                stored = record.load_in(folder)
            except (OSError, *MALFORMED) as err:
                _LOG.warning("removing %s: its record cannot be used (%s)", folder.name, err)
                continue
            self._nodes[folder.name] = self._node(stored)
        namespaces.kill_unrecorded_inits(self._instances, {node.record.pid for node in self._nodes.values()})
        for folder in self._instances.iterdir():
            if folder.name not in self._nodes:
                shutil.rmtree(folder, ignore_errors=True)
        await asyncio.gather(*(self._adopt(node) for node in self._nodes.values()))

    async def start(self, spec: NodeSpec) -> StartedNode:
        """Boot a node unless it is already running. Return its address and host key."""
        if not _NAME.fullmatch(spec.instance_id) or not _USER.fullmatch(spec.user):
            raise RehearsalError(f"invalid node name {spec.instance_id!r} or user {spec.user!r}")
        async with self._lock(spec.instance_id):
            node = self._nodes.get(spec.instance_id)
            starting = node is None or node.record.state != "running"
            if starting and any(fault.do == "boot-fails" for fault in self._fault_injector.at_boot(spec)):
                raise RehearsalError("Internal error on launch (simulated fault)")
            if node is None or not node.record.disk:
                node = await self._create(spec)
            if node.record.state != "running":
                await self._power_on(node)
            return StartedNode(node.record.address, node.record.port, node.record.host_key)

    async def stop(self, instance_id: str) -> None:
        """Stop a node and remove its disk. Idempotent."""
        async with self._lock(instance_id):
            node = self._nodes.get(instance_id)
            if node is None:
                return
            if node.record.state == "running":
                await node.power_off("it was stopped", unheard=False)
            elif node.record.unheard:
                node.acknowledge()
            if node.record.disk:
                await node.remove_disk()

    async def power_off(self, instance_id: str) -> None:
        """Stop a node and keep its disk."""
        async with self._lock(instance_id):
            node = self._nodes.get(instance_id)
            if node is not None and node.record.state == "running":
                await node.power_off("it was powered off", unheard=False)

    async def reboot(self, instance_id: str) -> None:
        """Reboot a running node from its disk."""
        async with self._lock(instance_id):
            node = self.find(instance_id)
            if node.record.state != "running":
                raise RehearsalError(f"cannot reboot node {instance_id}: the node is off")
            await node.power_off("it was rebooted", unheard=False)
            await self._power_on(node)

    async def forget(self, instance_id: str) -> None:
        """Stop a node and remove its record, console and disk."""
        await self.stop(instance_id)
        async with self._lock(instance_id):
            node = self._nodes.pop(instance_id, None)
            if node is not None:
                shutil.rmtree(node.paths.root, ignore_errors=True)

    async def stop_all(self) -> None:
        """Stop all nodes in parallel and remove their disks."""
        await asyncio.gather(*(self.stop(name) for name in tuple(self._nodes)))

    def find(self, instance_id: str) -> SimulatedNode:
        """Return the node with this ID."""
        if instance_id not in self._nodes:
            raise RehearsalError(f"there is no node {instance_id}")
        return self._nodes[instance_id]

    def reports(self) -> list[NodeReport]:
        """Return a report on every node."""
        return [
            replace(node.record.report(), befallen=tuple(fault.do for fault in node.faults.active))
            for node in self._nodes.values()
        ]

    def unheard(self) -> list[PoweredOff]:
        """Return the power-off events that no client has acknowledged."""
        nodes = [node.record for node in self._nodes.values() if node.record.unheard]
        return [PoweredOff(item.spec.instance_id, item.reason) for item in nodes]

    def acknowledge(self, instance_id: str) -> None:
        """Record that a client acknowledged the power-off event of a node."""
        node = self._nodes.get(instance_id)
        if node is not None and node.record.unheard:
            node.acknowledge()

    def now_s(self) -> float:
        """Return the time of the timer clock, in seconds since the epoch."""
        return time.time() + self.offset_s

    def advance(self, seconds: float) -> None:
        """Advance the timer clock."""
        if not shift_within_limits(self.offset_s + seconds):
            message = f"the timer clock can differ from this machine's clock by at most {LIMIT_DAYS} days"
            raise ValueError(message)
        self.offset_s += seconds
        for node in self._nodes.values():
            if node.record.state == "running":
                node.timers.arm()

    async def set_access(self, instance_id: str, opened: Opened) -> None:
        """Set whether a node accepts SSH, whether it can reach the internet, and what it may mount."""
        async with self._lock(instance_id):
            await self.find(instance_id).set_access(opened)

    def record_image_packages(self, instance_id: str, image_id: str) -> None:
        """Record the packages installed on a node as the packages of an image created from the node."""
        self._images.store(image_id, self.find(instance_id).record.installed)

    async def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace all node faults. Faults that can affect running nodes take effect immediately.

        A running node that a previous fault has affected stays affected until the node boots again.
        """
        self._fault_injector.put(faults)
        for name, node in tuple(self._nodes.items()):
            async with self._lock(name):
                if node.record.state == "running":
                    await node.apply_faults(self._fault_injector.now(node.record.spec))

    def any_running(self) -> bool:
        """Return True if any node is running."""
        return any(node.record.state == "running" for node in self._nodes.values())

    def trim_consoles(self) -> None:
        """Limit the size of the nodes' console logs."""
        for node in self._nodes.values():
            node.console.trim()

    def _lock(self, instance_id: str) -> asyncio.Lock:
        return self._locks.setdefault(instance_id, asyncio.Lock())

    async def _create(self, spec: NodeSpec) -> SimulatedNode:
        old = self._nodes.get(spec.instance_id)
        installed = self._images.installed(spec.image_id)
        paths = NodePaths(self._instances / spec.instance_id)
        paths.create()
        key = asyncssh.generate_private_key("ssh-ed25519")
        record.write_private(paths.host_key, key.export_private_key())
        claim = addresses.claim_free_address(
            self._directory, old.record.address if old else spec.address, self._used(spec.instance_id)
        )
        stored = SimulatedNodeRecord(
            installed=installed,
            spec=spec, address=claim.address, port=claim.port, metadata_port=claim.metadata_port,
            host_key=key.get_fingerprint(), isolation=self._isolation,
        )  # fmt: skip
        claim.close()
        node = self._node(stored)
        record.save(paths.record, stored)
        node.body.layer.folder.mkdir(parents=True)
        node.body.layer.write_files(
            user=spec.user,
            hostname=hostname(claim.address),
            authorized_keys=spec.authorized_keys,
            host_key_public=key.export_public_key().decode().strip(),
        )
        self._nodes[spec.instance_id] = node
        return node

    def _used(self, excluded: str) -> set[str]:
        others = (node.record for name, node in self._nodes.items() if name != excluded)
        return {item.address for item in others if item.address != "127.0.0.1"}

    def _node(self, stored: SimulatedNodeRecord) -> SimulatedNode:
        paths = NodePaths(self._instances / stored.spec.instance_id)
        host = HostServices(
            now_s=self.now_s, credentials=lambda: self.credentials, ended=self._ended, shared=self._shared
        )
        return SimulatedNode(stored, paths, self._body(stored, paths), host)

    def _body(self, stored: SimulatedNodeRecord, paths: NodePaths) -> NodeRuntime:
        if stored.isolation == "plain":
            return PlainBody(paths.disk / "root", paths.run, self._surroundings)
        cage = namespace_script.NamespacePaths(
            disk=paths.disk,
            run=paths.run,
            console=paths.console,
            hostname=hostname(stored.address),
            surroundings=self._surroundings,
            machine_mounts=self._mounts,
        )
        return namespaces.CagedBody(cage)

    async def _power_on(self, node: SimulatedNode) -> None:
        claim = self._claim(node.record)
        node.faults = NodeFaults(self._fault_injector.at_boot(node.record.spec))
        try:
            await node.power_on(claim)
        except OSError as err:
            await node.power_off(f"boot failed: {err.strerror}", unheard=False)
            raise RehearsalError(f"node {node.record.spec.instance_id} did not boot: {err}") from err
        except RehearsalError as err:
            claim.close()
            await node.power_off(f"boot failed: {err.message}", unheard=False)
            raise

    def _claim(self, stored: SimulatedNodeRecord) -> addresses.BoundAddress:
        try:
            return addresses.bind_address(stored.address, stored.port, stored.metadata_port)
        except OSError as err:
            raise RehearsalError(f"cannot bind {stored.address}:{stored.port}: {err.strerror}") from err

    async def _adopt(self, node: SimulatedNode) -> None:
        stored = node.record
        alive = node.body.adopt((stored.pid, stored.pid_started))
        if stored.state == "running" and stored.booted and alive:
            await node.adopt(self._claim(stored))
            return
        await node.body.power_off()
        if stored.state == "running":
            _LOG.warning("%s: the init exited or the boot did not finish; rebooting", stored.spec.instance_id)
            await self._power_on(node)

    def _ended(self, node: SimulatedNode, action: Action, reason: str) -> None:
        """Power off or reboot a node in a separate task, because powering it off cancels the node's own tasks."""
        task = asyncio.get_running_loop().create_task(self._end(node, action, reason))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end(self, node: SimulatedNode, action: Action, reason: str) -> None:
        async with self._lock(node.record.spec.instance_id):
            if node.record.state != "running":
                return
            await node.power_off(reason, unheard=action == "off")
            if action == "reboot":
                await self._power_on(node)
                return
        self.changed()


def _mount_table() -> str:
    table = Path("/proc/self/mountinfo")
    return table.read_text() if table.exists() else ""
