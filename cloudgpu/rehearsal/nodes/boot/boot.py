"""Boot a simulated node: run cloud-init's steps and the user data in order, and record their progress.

`tests/system/cloud_init` shows this order with cloud-init itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncssh

from cloudgpu.rehearsal.nodes import processes
from cloudgpu.rehearsal.nodes.boot import user_data
from cloudgpu.rehearsal.nodes.boot.console import Console
from cloudgpu.rehearsal.nodes.boot.user_data import Kind, UserData, UserDataPart
from cloudgpu.rehearsal.nodes.processes import NodeRuntime
from cloudgpu.rehearsal.nodes.record import StoredRecord
from cloudgpu.rehearsal.nodes.servers.metadata import hostname

_VERSION = "24.1.3-rehearsal"
_FOLDERS: dict[Kind, str] = {"boothook": "boothooks", "script": "scripts"}
_PER_BOOT = 'failed=0; for script in "$1"/*; do if [ -x "$script" ]; then "$script" || failed=1; fi; done; exit $failed'
_WRITE_AND_RUN = 'mkdir -p "$1" && cat > "$1/$2" && chmod 700 "$1/$2" && cd / && exec "$1/$2"'


@dataclass(frozen=True)
class HostKeyText:
    """A node's host key as cloud-init prints it. `public` is the public key line without a comment."""

    fingerprint: str
    public: str

    @classmethod
    def read(cls, path: Path) -> "HostKeyText":
        """Return the fingerprint and public key for the private key in a file."""
        key = asyncssh.read_private_key(path)
        return cls(key.get_fingerprint(), " ".join(key.export_public_key().decode().split()[:2]))


class CloudInit:
    """The cloud-init run during one boot of a node."""

    def __init__(self, body: NodeRuntime, console: Console, data: UserData, environment: Mapping[str, str]) -> None:
        """Create the run without starting anything.

        Args:
            body: Runtime that executes the parts of the user data.
            console: Console that receives the output.
            data: The parsed user data.
            environment: Environment variables for each part.
        """
        self._body = body
        self._console = console
        self._data = data
        self._environment = environment
        self._began_s = time.monotonic()
        self.failed = bool(data.refused)

    async def run_boot_hooks(self, hostname: str, key: HostKeyText) -> None:
        """Run the boot hooks, before users can log in."""
        self._write(f"Cloud-init v. {_VERSION} running 'init' at {_now():%a, %d %b %Y %H:%M:%S} +0000. (simulated)")
        for line in self._data.refused:
            self._write(f"ERROR: {line}")
        for part in self._data.of("boothook"):
            await self._run(part)
        self._console.write(f"Generating public/private ed25519 key pair.\nThe key fingerprint is:\n{key.fingerprint} ")
        self._console.write(f"root@{hostname}\n")

    async def run_per_boot_scripts(self) -> None:
        """Run all executables in `/var/lib/cloud/scripts/per-boot`. Users can already log in."""
        folder = f"{self._body.layer.shown}/var/lib/cloud/scripts/per-boot"
        code = await self._execute(["/bin/sh", "-c", _PER_BOOT, "cloud-init", folder], b"")
        if code:
            self.failed = True
            self._write(f"WARNING: per-boot scripts exited with status {code}")

    async def scripts(self) -> None:
        """Run the user data's scripts. Call this only at the node's first boot. Users can already log in."""
        self._write(f"Cloud-init v. {_VERSION} running 'modules:final' at {_now():%a, %d %b %Y %H:%M:%S} +0000.")
        for part in self._data.of("script"):
            await self._run(part)

    def print_final_messages(self, hostname: str, key: HostKeyText) -> None:
        """Print the host key, which clients read from the console, and the final message of the boot."""
        stamp = f"<14>{_now():%b %e %H:%M:%S} ec2: "
        bar = "#" * 61
        framed = [
            "",
            bar,
            "-----BEGIN SSH HOST KEY FINGERPRINTS-----",
            f"256 {key.fingerprint} root@{hostname} (ED25519)",
            "-----END SSH HOST KEY FINGERPRINTS-----",
            bar,
        ]
        lines = [f"{stamp}{line}" for line in framed]
        lines += [
            "-----BEGIN SSH HOST KEY KEYS-----",
            f"{key.public} root@{hostname}",
            "-----END SSH HOST KEY KEYS-----",
        ]
        self._console.write("".join(f"{line}\n" for line in lines))
        up_s = time.monotonic() - self._began_s
        finished = (
            f"finished at {_now():%a, %d %b %Y %H:%M:%S} +0000. Datasource DataSourceEc2Local.  Up {up_s:.2f} seconds"
        )
        self._write(f"Cloud-init v. {_VERSION} {finished}")

    async def _run(self, part: UserDataPart) -> None:
        folder = f"{self._body.layer.shown}/var/lib/cloud/instance/{_FOLDERS[part.kind]}"
        argv = ["/bin/sh", "-c", _WRITE_AND_RUN, "cloud-init", folder, part.name]
        code = await self._execute(argv, part.body)
        if code:
            self.failed = True
            self._write(f"WARNING: {part.kind} {part.name} exited with status {code}")

    async def _execute(self, argv: list[str], stdin: bytes) -> int:
        return await processes.run(self._body, self._console, argv, self._environment, stdin)

    def _write(self, text: str) -> None:
        up_s = time.monotonic() - self._began_s
        self._console.write(f"[{up_s:12.6f}] cloud-init[1]: {text}\n")


def _now() -> datetime:
    return datetime.now(UTC)


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
