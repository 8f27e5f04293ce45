"""A connection to a node of the example backend. Instead of using SSH, it runs commands in the node's directory."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from cloudgpu.errors import ConnectError, RemoteCommandError, UnsupportedError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import COMMAND_S, FailureCallback, OnBytes, Result, ignore_bytes, ignore_failure, require_success
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer.glob import path_matcher
from cloudgpu.ssh.transfer.listing import OnSkipped, PlaceOf, same_place


@dataclass
class LocalStream:
    """A running command. Implements `ssh.base.Stream`, but without a time limit and without standard error."""

    process: subprocess.Popen[str]
    exit_code: int | None = None
    stderr: str = field(default="", init=False)

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        del timeout_s
        for line in self.process.stdout or ():
            yield line.rstrip("\n")
        status = self.process.wait()
        self.exit_code = status if status >= 0 else 128 - status

    def renew(self) -> None:
        return

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class LocalHost:
    """Runs commands in the directory of a node and copies files to and from it. Implements `ssh.base.Host`."""

    node: Node
    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        """Environment of commands. The keeper finds a node's processes by the variable `LOCAL_NODE`."""
        return {**os.environ, "HOME": str(self.directory), "LOCAL_NODE": str(self.directory)}

    def run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        return require_success(self.try_run(command, stdin=stdin, timeout_s=timeout_s))

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        shell, started = ["sh", "-c", command.wire()], time.monotonic()
        try:
            done = subprocess.run(
                shell, input=stdin, capture_output=True, check=False, timeout=timeout_s,
                cwd=self.directory, env=self.environ,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as err:
            raise ConnectError(f"{self.node.instance_id}: {err}", hint="cloudgpu status") from err
        out, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        seconds = time.monotonic() - started
        return Result(self.node.instance_id, command.shown(), done.returncode, out, errors, seconds)

    def stream(self, command: RemoteCommand, *, stdin: bytes = b"") -> LocalStream:
        process = subprocess.Popen(
            ["sh", "-c", command.wire()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, cwd=self.directory, env=self.environ,
        )  # fmt: skip
        if process.stdin is not None:
            process.stdin.write(stdin.decode())
            process.stdin.close()
        return LocalStream(process)

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        to = self.directory / path
        to.parent.mkdir(parents=True, exist_ok=True)
        fresh = to.with_name(f".{to.name}.fresh")
        fresh.write_bytes(content)
        fresh.chmod(mode)
        fresh.replace(to)

    def get_file(self, path: str, to: Path) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        fresh = to.with_name(f".{to.name}.fresh")
        try:
            shutil.copyfile(self.directory / path, fresh)
        except OSError as err:
            raise RemoteCommandError(f"{self.node.instance_id}: cannot read {path}: {err.strerror}") from err
        fresh.replace(to)

    def send_tree(self, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes) -> int:
        shutil.rmtree(self.directory / to, ignore_errors=True)
        (self.directory / to).mkdir(parents=True)
        for name in files:
            target = self.directory / to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target, follow_symlinks=False)
        sent = sum((source / name).lstat().st_size for name in files)
        on_bytes(sent, sent)
        return sent

    def claim_tree(self, to: str) -> None:
        (self.directory / to).mkdir(parents=True, exist_ok=True)

    def fetch_tree(
        self, source: str, patterns: Sequence[str], to: Path, on_skipped: OnSkipped | None = None,
        on_bytes: OnBytes = ignore_bytes, *, place: PlaceOf = same_place,
    ) -> list[str]:  # fmt: skip
        del on_skipped, on_bytes
        root = self.directory / source
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        names = list(filter(path_matcher(patterns), found))
        for name in names:
            self.get_file(os.fspath(root / name), to / place(name))
        return names

    def forward(
        self, remote_port: int, *, local: int = 0, near: bool = False, bound: bool = False,
        on_outcome: FailureCallback = ignore_failure,
    ) -> NoReturn:  # fmt: skip
        del local, near, bound, on_outcome
        message = f"{self.node.instance_id}: no tunnel to port {remote_port}: the node shares this machine's network"
        raise UnsupportedError(message, hint=f"connect to {self.node.private_address}:{remote_port}")

    def server_key(self) -> NoReturn:
        message = f"{self.node.instance_id} has no SSH server, so it has no host key"
        raise UnsupportedError(message, hint="use `cloudgpu exec`")

    def close(self) -> None:
        return
