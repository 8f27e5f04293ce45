"""Workspaces with their own node host, and OpenSSH clients for the nodes."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncssh
import pytest

from cloudgpu.rehearsal.nodes import namespaces
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.nodes.values import NodeSpec, StartedNode


class Workspace:
    """A state home with a node host and a key pair, and commands that connect to the nodes."""

    def __init__(self, home: Path, isolation: str) -> None:
        self.home = home
        self.isolation = isolation
        self.client = NodeHostClient(home / "rehearsal" / "nodes", isolation=isolation)
        key = asyncssh.generate_private_key("ssh-ed25519")
        self.key = home / "key"
        home.mkdir(parents=True)
        self.key.touch(mode=0o600)
        self.key.write_bytes(key.export_private_key())
        self.public = key.export_public_key().decode().strip()

    def spec(self, number: int = 1, user_data: str | bytes = b"", **changes: object) -> NodeSpec:
        data = user_data.encode() if isinstance(user_data, str) else user_data
        values: dict[str, object] = {
            "instance_id": f"i-{number:017x}",
            "instance_type": "p3dn.24xlarge",
            "region": "us-east-1",
            "zone": "us-east-1c",
            "image_id": "ami-1",
            "address": "",
            "user": "ubuntu",
            "authorized_keys": (self.public,),
            "user_data": data,
            "gpu": "V100",
            "gpus": 8,
            "gpu_memory_mib": 32768,
            "efa_interfaces": 1,
        }
        return NodeSpec(**(values | changes))  # type: ignore[arg-type]

    def ssh_command(self, node: StartedNode, *options: str, program: str = "ssh") -> list[str]:
        port = "-p" if program == "ssh" else "-P"
        known = self.home / f"known-{node.address}"
        return [
            program, port, str(node.port), "-F", "none", "-i", str(self.key), "-o", "BatchMode=yes",
            "-o", "LogLevel=ERROR",
            "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={known}", *options,
        ]  # fmt: skip

    def ssh(
        self, node: StartedNode, command: str, *options: str, data: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        line = [*self.ssh_command(node, *options), f"ubuntu@{node.address}", command]
        stdin = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        return subprocess.run(line, capture_output=True, timeout=60, check=False, **stdin)  # type: ignore[call-overload]

    def until(self, condition: Callable[[], object], seconds: float = 20.0) -> object:
        """Wait until a condition returns a true value, and return the value."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s"
            time.sleep(0.05)
        return value

    def state(self, number: int = 1) -> tuple[str, str]:
        name = f"i-{number:017x}"
        return next((node.state, node.reason) for node in self.client.list() if node.instance_id == name)

    def finished(self, number: int = 1) -> str:
        """Wait for the boot to finish and return the console output."""

        def finished_output() -> str:
            text = self.client.console(f"i-{number:017x}").decode()
            return text if " finished at " in text else ""

        return str(self.until(finished_output))

    def host_pid(self) -> int:
        log = (self.client.directory / "host.log").read_text()
        return int([line for line in log.splitlines() if " with isolation " in line][-1].split(" host ")[1].split()[0])


@pytest.fixture(params=["cage", "plain"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    yield from _workspace(tmp_path, request.param)


@pytest.fixture
def caged_workspace(tmp_path: Path) -> Iterator[Workspace]:
    yield from _workspace(tmp_path, "cage")


@pytest.fixture
def plain_workspace(tmp_path: Path) -> Iterator[Workspace]:
    yield from _workspace(tmp_path, "plain")


def _workspace(folder: Path, isolation: str) -> Iterator[Workspace]:
    if shutil.which("ssh") is None:
        pytest.skip("no OpenSSH client here")
    if isolation == "cage":
        refusal = namespaces.unsupported_reason(folder / "probe") if sys.platform == "linux" else "not Linux"
        if refusal:
            pytest.skip(f"no namespaces here: {refusal}")
    workspace = Workspace(folder / "home", isolation)
    try:
        yield workspace
    finally:
        workspace.client.shutdown()
