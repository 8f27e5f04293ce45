"""Run user data in cloud-init's order: boot hooks, per-boot scripts, one-time scripts. Then print the host keys.

`tests/system/cloud_init` shows this order with cloud-init itself.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import asyncssh

from cloudgpu.rehearsal.nodes import superuser
from cloudgpu.rehearsal.nodes.boot.console import Console
from cloudgpu.rehearsal.nodes.boot.user_data import Kind, UserData, UserDataPart
from cloudgpu.rehearsal.nodes.processes import NodeRuntime

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
        return await superuser.run(self._body, self._console, argv, self._environment, stdin)

    def _write(self, text: str) -> None:
        up_s = time.monotonic() - self._began_s
        self._console.write(f"[{up_s:12.6f}] cloud-init[1]: {text}\n")


def _now() -> datetime:
    return datetime.now(UTC)
