"""Real OpenSSH servers on 127.0.0.1, each with its own keys."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.keys import ensure_key, read_public


def _sshd() -> str:
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        reason = "sshd is not installed (Debian package openssh-server; scripts/test-parts installs it)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass
class Sshd:
    """A running OpenSSH server. `home` is the home directory of its commands."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    key: Path
    fingerprints: tuple[str, ...]
    home: Path

    def node(self, index: int = 0, **changes: object) -> Node:
        fields = {
            "index": index,
            "instance_id": f"i-{index:017x}",
            "address": "127.0.0.1",
            "port": self.port,
            "user": os.environ.get("USER") or "root",
            "host_keys": self.fingerprints,
            "private_address": "127.0.0.1",
            "instance_type": "p3dn.24xlarge",
            "zone": "us-east-1a",
            "gpu": "V100",
            "gpus": 8,
            "simulated": True,
        }
        return Node(**{**fields, **changes})

    def children(self) -> list[int]:
        """Return the processes that serve connections."""
        found = []
        pending = [self.process.pid]
        while pending:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pid = pending.pop()
                text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
                found += map(int, text.split())
                pending += map(int, text.split())
        return found

    def kill(self) -> None:
        """Kill the server and the processes of its connections."""
        for pid in [self.process.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def serve(
    folder: Path,
    *,
    host_key_kinds: tuple[str, ...] = ("ed25519",),
    extra: str = "",
    port: int = 0,
    environment: str = "",
    launcher: tuple[str, ...] = (),
) -> Sshd:
    """Start an OpenSSH server and wait until it accepts connections."""
    sshd = _sshd()
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    home.mkdir(exist_ok=True)
    key = folder / "client" / "id_ed25519"
    public = ensure_key(key)
    authorized = folder / "authorized_keys"
    authorized.write_text(public.line + "\n")
    fingerprints = []
    lines = []
    for kind in host_key_kinds:
        path = folder / f"host_{kind}"
        if not path.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(path)], check=True)
        fingerprints.append(read_public(path).fingerprint)
        lines.append(f"HostKey {path}")
    port = port or free_port()
    config = folder / "sshd_config"
    config.write_text(
        "\n".join(
            [
                f"Port {port}",
                "ListenAddress 127.0.0.1",
                *lines,
                f"AuthorizedKeysFile {authorized}",
                "PidFile none",
                "UsePAM no",
                "StrictModes no",
                "MaxStartups 1000:1:2000",
                "PasswordAuthentication no",
                "PermitRootLogin prohibit-password",
                f"SetEnv HOME={home} {environment}",
                "Subsystem sftp internal-sftp",
                extra,
            ]
        )
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("ab") as log:
        process = subprocess.Popen([*launcher, sshd, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    server = Sshd(folder, port, process, key, tuple(fingerprints), home)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return server
        time.sleep(0.02)
    server.kill()
    pytest.fail(f"sshd did not start: {(folder / 'sshd.log').read_text()}")


@pytest.fixture
def start_sshd() -> Callable[..., Sshd]:
    return serve


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    server = serve(tmp_path / "sshd")
    yield server
    server.kill()


@pytest.fixture
def host(sshd: Sshd) -> Iterator[SshHost]:
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as connected:
        yield connected
