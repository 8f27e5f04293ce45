"""A simulated node: its power state, its servers, and the commands that it simulates."""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import asyncssh

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.faults.node_faults import NodeFault, NodeFaults
from cloudgpu.rehearsal.nodes import addresses, processes, shared_folders
from cloudgpu.rehearsal.nodes.boot import NodeBoot
from cloudgpu.rehearsal.nodes.gpus import LIBRARY_FILE, Archive, installation_command
from cloudgpu.rehearsal.nodes.images import NO_EGRESS_FILE
from cloudgpu.rehearsal.nodes.processes import NodeRuntime, NodeTimers
from cloudgpu.rehearsal.nodes.record import Console, NodePaths, SimulatedNodeRecord, StoredRecord
from cloudgpu.rehearsal.nodes.servers import command_answers, metadata
from cloudgpu.rehearsal.nodes.servers.command_answers import StandInServer
from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService, hostname
from cloudgpu.rehearsal.nodes.servers.power_commands import Action
from cloudgpu.rehearsal.nodes.servers.sshd import LoginUser, NodeSshServer, SshDoors
from cloudgpu.rehearsal.nodes.shared_storage import SharedFolderStore, Views
from cloudgpu.rehearsal.nodes.values import Opened, RoleCredentials

_LOG = logging.getLogger(__name__)
_HOOK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class HostServices:
    """Services that the node host provides to a node."""

    now_s: Callable[[], float]
    credentials: Callable[[], RoleCredentials | None]
    ended: Callable[["SimulatedNode", Action, str], None]
    """Function that powers off or reboots a node; called with the node, the action and the reason."""
    shared: SharedFolderStore


class SimulatedNode:
    """A simulated instance. `HostedNodes` serializes calls to a node's asynchronous methods.

    Attributes:
        paths: Files of the node.
        body: Runtime of the node's processes.
        console: Console output of the node.
        faults: Faults that have affected the node since it last booted.
    """

    def __init__(self, stored: SimulatedNodeRecord, paths: NodePaths, body: NodeRuntime, host: HostServices) -> None:
        """Create the node without starting it.

        Args:
            stored: Record of the node.
            paths: Files of the node.
            body: Runtime of the node's processes.
            host: Services of the node host.
        """
        self.paths = paths
        self.body = body
        self.console = Console(paths.console)
        self.faults = NodeFaults()
        self._host = host
        self._stored = StoredRecord(stored, paths.record, lambda: body.process)
        self._boot = NodeBoot(body, self.console, self._stored, paths.host_key)
        self.timers = NodeTimers(
            self._stored, now_s=self._now_s, cloud_now_s=host.now_s, run=self._start_command, end=self._end
        )
        self._claim: addresses.BoundAddress | None = None
        self._doors = SshDoors(self.paths.run)
        self._listening = asyncio.Event()
        self._metadata: MetadataService | None = None
        self._views = Views(body, host.shared, self._run, self._role_credentials)
        self._standins = StandInServer(self._simulate, self._after_reply)
        self._tasks: set[asyncio.Task[int | None]] = set()
        self._powered_on_s = time.monotonic()

    @property
    def record(self) -> SimulatedNodeRecord:
        """The node's current record."""
        return self._stored.current

    async def power_on(self, claim: addresses.BoundAddress) -> None:
        """Boot the node. Return once SSH listens, or after a minute if the boot hooks take longer.

        With the `boot-hangs` fault, start no process and return immediately.
        """
        self._boot.begin()
        self._listening.clear()
        self._powered_on_s = time.monotonic()
        self.console.write("")
        hangs = self.faults.has("boot-hangs")
        if not hangs:
            self.body.limit_home(self.faults.home_limit_kib)
            await self.body.power_on()
        self._claim = claim
        self._stored.change(state="running", reason="", unheard=False, booted=False, timers=())
        if hangs:
            return
        await self._serve(claim)
        self._show_egress()
        await self._show_disks()
        await self._show_cuda()
        await self.apply_faults(())
        self._spawn(self._boot.run(self._environment(), lambda: self._listen(claim)))
        waiting = asyncio.ensure_future(self._listening.wait())
        await asyncio.wait({waiting}, timeout=_HOOK_TIMEOUT_S)
        waiting.cancel()

    async def adopt(self, claim: addresses.BoundAddress) -> None:
        """Take over a node that an earlier host booted."""
        self._stored.change(address=claim.address, port=claim.port, metadata_port=claim.metadata_port)
        await self._serve(claim)
        await self._listen(claim)
        self._boot.end()
        self.timers.arm()

    async def power_off(self, reason: str, *, unheard: bool) -> None:
        """Stop the processes and servers of the node. Its disk, console and record are kept."""
        self._stop_tasks()
        await self._doors.close()
        await self.body.power_off()
        self._close_sockets()
        self._boot.end()
        self._listening.set()
        self._stored.power_off(reason, unheard=unheard)

    async def remove_disk(self) -> None:
        """Delete the disk of the node, which must be off."""
        loop = asyncio.get_running_loop()
        if self.paths.disk.exists():
            await loop.run_in_executor(None, shutil.rmtree, self.paths.disk)
        shutil.rmtree(self.paths.run, ignore_errors=True)
        self._stored.change(disk=False)

    async def apply_faults(self, added: Sequence[NodeFault]) -> None:
        """Add faults to the running node, then apply all of the node's faults that can affect a running node."""
        self.faults = self.faults.plus(added)
        if self.faults.has("metadata-off") and self._metadata is not None:
            self._metadata.close()
        if self.faults.has("sshd-dies"):
            await self._doors.close()
        elif any(fault.do == "host-key-changes" for fault in added) and self._doors.is_open:
            await self._doors.close()
            await self._listen_again()
        notices = self.faults.new_notices(self.record, self._host.now_s())
        if notices:
            self._stored.change(**notices)
            self.timers.arm()

    async def set_access(self, opened: Opened) -> None:
        """Allow or block SSH, internet access and storage access. Open SSH connections are kept."""
        before = self.record.spec
        self._stored.change(spec=replace(before, ssh_open=opened.ssh, egress=opened.egress, mountable=opened.mountable))
        self._show_egress()
        if self.record.state != "running":
            return
        await self._show_disks()
        if opened.ssh == before.ssh_open:
            return
        if not opened.ssh:
            self._doors.close_port()
        elif self._listening.is_set():
            await self._listen_again()

    def acknowledge(self) -> None:
        """Record that a client acknowledged the node's power-off event."""
        self._stored.change(unheard=False)

    # Servers, internet access and disks.

    async def _serve(self, claim: addresses.BoundAddress) -> None:
        self._claim = claim
        self._metadata = MetadataService(
            self.record.spec, claim.address, claim.metadata_port,
            now_s=self._host.now_s, credentials=self._role_credentials, notices=self._notices,
        )  # fmt: skip
        await self._metadata.listen(claim.metadata)
        await self._standins.listen(self.paths.run)
        self._spawn(self._watch())

    async def _listen(self, claim: addresses.BoundAddress) -> None:
        if self.faults.has("sshd-dies"):
            self._listening.set()
            return
        spec = self.record.spec
        login = LoginUser(
            user=spec.user,
            authorized_keys=spec.authorized_keys,
            home=self.body.home(spec.user),
            environment=self._environment(),
            hostname=hostname(claim.address),
            address=claim.address,
        )
        bound = claim.ssh if spec.ssh_open else None
        await self._doors.open(lambda: NodeSshServer(self.body, login, self._shown_key()), bound)
        self._listening.set()

    def _shown_key(self) -> asyncssh.SSHKey:
        """Return the host key that the console shows, or a new key if the `host-key-changes` fault is active."""
        if self.faults.has("host-key-changes"):
            return asyncssh.generate_private_key("ssh-ed25519")
        return asyncssh.read_private_key(self.paths.host_key)

    async def _listen_again(self) -> None:
        """Listen on the same port again, because closing the server closed its socket."""
        if self._claim is not None and not self.faults.has("sshd-dies"):
            self._claim = addresses.rebind_ssh_port(self._claim, self.record.port)
            await self._listen(self._claim)

    def _show_egress(self) -> None:
        """Create or remove the file whose existence makes downloads on the node fail."""
        mark = self.paths.run / NO_EGRESS_FILE
        if self.record.spec.egress:
            mark.unlink(missing_ok=True)
        else:
            mark.touch()

    async def _show_disks(self) -> None:
        """Create devices for attached volumes in the node's `/dev`."""
        command = shared_folders.device_creation_command(dict(self.record.spec.mountable), self.body.layer.shown)
        if command:
            await self._run(command)

    async def _show_cuda(self) -> None:
        """Install the CUDA library whose initialization fails, or remove it if the fault was cleared."""
        error = self.faults.cuda_error
        if error or (self.body.layer.folder / LIBRARY_FILE).exists():
            await self._run(installation_command(self.body.layer.shown, error))

    def _role_credentials(self) -> RoleCredentials | None:
        """Return the credentials of the node's role, or None if the node has no role."""
        return self._host.credentials() if self.record.spec.role else None

    def _notices(self) -> Mapping[str, str]:
        return metadata.notice_entries(self.record.spot_end_epoch_s, self.record.rebalance_epoch_s)

    def _environment(self) -> dict[str, str]:
        endpoint = f"http://{self.record.address}:{self.record.metadata_port}"
        root = "/root" if not self.body.layer.shown else self.body.layer.shown
        own = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint, "HOME": root, "USER": "root", "LOGNAME": "root"}
        # CUDA that an injected fault affects does not recover, so that the bootstrap does not wait for it.
        waits = {"CLOUDGPU_FABRIC_S": "0"} if self.faults.cuda_error else {}
        return self.body.environment() | own | waits

    async def _watch(self) -> None:
        await self.body.ended()
        self._end("off", "its init exited")

    def _end(self, action: Action, reason: str) -> None:
        self._host.ended(self, action, reason)

    # Simulated commands.

    async def _simulate(
        self, program: str, arguments: Sequence[str], units: Mapping[str, str]
    ) -> command_answers.Reply:
        reply = command_answers.simulate_command(program, arguments, units, self._context())
        if reply.wait_for_boot:
            await self._boot.wait()
            reply = command_answers.simulate_command(program, arguments, units, self._context())
        if reply.formatted:
            self._host.shared.format(reply.formatted)
        failed = await self._views.settle(program, reply)
        if failed is not None:
            return failed
        after = self.record.after(reply)
        if after != self.record:
            self._stored.change(timers=after.timers, mounted=after.mounted, installed=after.installed)
        if reply.log:
            await self._run(["/bin/sh", "-c", _NOTE, "note", self.body.layer.shown, reply.log])
        return reply

    def _after_reply(self, reply: command_answers.Reply) -> None:
        """Apply a reply's effects, which may power off the node, after the command has received the reply."""
        if reply.run:
            self._start_command(reply.run)
        if reply.arm is not None or reply.disarm:
            self.timers.arm()
        if reply.end is not None:
            self._end(reply.end, "it powered itself off" if reply.end == "off" else "it rebooted itself")

    def _context(self) -> command_answers.CommandContext:
        now = datetime.fromtimestamp(self._now_s(), UTC)
        spec, mounted, root = self.record.spec, self.record.mounted, self.body.layer.shown
        return command_answers.CommandContext(
            spec, now, self.record.timers, boot_finished=not self._boot.running, boot_failed=self._boot.failed,
            installed=self.record.installed, bare=self.faults.has("bare-image"),
            archive=Archive(newer_libraries=self.faults.has("newer-libraries")), driver_loading=self._driver_loading(),
            fabric_manager_down=self.faults.has("fabric-manager-down"),
            disks=shared_folders.NodeMounts(dict(spec.mountable), mounted, root, self._host.shared.formatted()),
        )  # fmt: skip

    def _driver_loading(self) -> bool:
        late = self.faults.find("driver-late")
        return late is not None and time.monotonic() - self._powered_on_s < late.seconds

    def _now_s(self) -> float:
        """Return the node's time, which a fault may skew."""
        return self._host.now_s() + self.faults.clock_skew_s

    # Processes and tasks.

    def _start_command(self, argv: Sequence[str]) -> None:
        self._spawn(self._run(list(argv)))

    async def _run(self, argv: list[str]) -> int:
        """Run a command as the node's superuser and write its output to the console. Return the exit status."""
        return await processes.run(self.body, self.console, argv, self._environment())

    def _spawn(self, work: Coroutine[None, None, int | None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[int | None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (err := task.exception()) is not None:
            _LOG.error("%s: %s", self.record.spec.instance_id, err, exc_info=err)
            if isinstance(err, OSError | RehearsalError):
                with contextlib.suppress(OSError):
                    self.console.write(f"cloud-init: the boot failed: {err}\n")

    def _stop_tasks(self) -> None:
        self.timers.disarm()
        for task in tuple(self._tasks):
            task.cancel()
        self._standins.close()

    def _close_sockets(self) -> None:
        if self._metadata is not None:
            self._metadata.close()
            self._metadata = None
        if self._claim is not None:
            self._claim.close()
            self._claim = None


_NOTE = 'mkdir -p "$1/var/log" && echo "$(date -u +%FT%TZ) simulated: $2" >> "$1/var/log/cloudgpu-rehearsal.log"'
