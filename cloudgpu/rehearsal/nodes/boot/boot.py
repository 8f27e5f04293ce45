"""Boot a simulated node: run cloud-init's steps in order, record their progress, and track the current boot."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from cloudgpu.rehearsal.nodes.boot import user_data
from cloudgpu.rehearsal.nodes.boot.cloud_init import CloudInit, HostKeyText
from cloudgpu.rehearsal.nodes.boot.console import Console
from cloudgpu.rehearsal.nodes.processes import NodeRuntime
from cloudgpu.rehearsal.nodes.record import StoredRecord
from cloudgpu.rehearsal.nodes.servers.metadata import hostname


class NodeBoot:
    """The current boot of one node.

    Attributes:
        running: True while cloud-init is running.
        failed: True if a script or boot hook failed, or user data was rejected, in the last finished boot.
    """

    def __init__(self, body: NodeRuntime, console: Console, stored: StoredRecord, host_key: Path) -> None:
        """Create the boot without starting it.

        Args:
            body: Runtime of the node's processes.
            console: Console of the node.
            stored: Record of the node.
            host_key: File with the private host key, whose fingerprint and public key are printed to the console.
        """
        self.running = False
        self.failed = False
        self._body = body
        self._console = console
        self._stored = stored
        self._host_key = host_key
        self._over = asyncio.Event()

    def begin(self) -> None:
        """Make `wait` block until the next boot is over."""
        self._over.clear()

    def end(self) -> None:
        """Mark the boot as over, because the boot finished or the node was powered off."""
        self._over.set()

    async def wait(self) -> None:
        """Wait until the boot is over."""
        await self._over.wait()

    async def run(self, environment: Mapping[str, str], listen: Callable[[], Awaitable[None]]) -> None:
        """Boot the node.

        Args:
            environment: Environment variables for the user data.
            listen: Function that starts the SSH server; called after the boot hooks, as on AWS.
        """
        self.running = True
        key = HostKeyText.read(self._host_key)
        record = self._stored.current
        name = hostname(record.address)
        own = {"INSTANCE_ID": record.spec.instance_id}
        data = user_data.parse(record.spec.user_data)
        cloud_init = CloudInit(self._body, self._console, data, {**environment, **own})
        try:
            await cloud_init.run_boot_hooks(name, key)
            await listen()
            await cloud_init.run_per_boot_scripts()
            if not self._stored.current.scripts_done:
                # Save before running the scripts, as cloud-init does: a reboot during a script must not rerun it.
                self._stored.change(scripts_done=True)
                await cloud_init.scripts()
            cloud_init.print_final_messages(name, key)
        finally:
            self.running = False
        self.failed = cloud_init.failed
        self._stored.change(booted=True)
        self.end()
