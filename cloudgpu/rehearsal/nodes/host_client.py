"""How the rehearsal cloud talks to the node host. Standard library only; starts the host when it is absent."""

import base64
import io
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.faults.node_faults import NodeFault, node_fault_json
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes import sockets
from cloudgpu.rehearsal.nodes.values import (
    Isolation,
    NodeReport,
    Opened,
    PoweredOff,
    RoleCredentials,
    StartedNode,
    spec_to_json,
)

_CALL_TIMEOUT_S = 150.0
_START_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_NOT_TWICE = frozenset({"advance", "reboot"})
"""What must not be sent again when nobody knows whether it was done; everything else may."""


class NodeHostClient:
    """One home's node host. Safe to share between threads: every call has a connection of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        home: Path | None = None,
        envs: Path | None = None,
        isolation: Isolation = "auto",
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: Where the host keeps its socket, log, records and disks.
            home: The state home that nodes must not see; the folder around `rehearsal` unless given.
            envs: Shared Python environments; `<home>/envs` unless given.
            isolation: Of a host that this client starts; a running one keeps its own.
        """
        self.directory = directory.absolute()
        self._home = (home or _home_around(self.directory)).absolute()
        self._envs = (envs or self._home / "envs").absolute()
        self._isolation = isolation

    def start(self, spec: NodeSpec) -> StartedNode:
        """Boot a node, or boot one that is off again; returns once its SSH server listens.

        A node that runs already is answered as it is. A boot hook that takes longer than a minute is not waited for.

        Raises:
            RehearsalError: The node did not start.
        """
        return StartedNode(**self._call("start", spec=spec_to_json(spec)))

    def stop(self, instance_id: str) -> None:
        """End a node; returns when every process of it is dead and its disk is removed. Twice is not an error.

        Raises:
            RehearsalError: It could not be ended.
        """
        self._call("stop", instance_id=instance_id)

    def power_off(self, instance_id: str) -> None:
        """End every process of a node and keep its disk, as StopInstances does; `start` boots it again.

        Raises:
            RehearsalError: It could not be ended.
        """
        self._call("power_off", instance_id=instance_id)

    def reboot(self, instance_id: str) -> None:
        """End every process of a node and boot it from the same disk.

        Raises:
            RehearsalError: There is no such running node.
        """
        self._call("reboot", instance_id=instance_id)

    def forget(self, instance_id: str) -> None:
        """End a node if it runs, and remove its record and console.

        Raises:
            RehearsalError: It could not be ended.
        """
        self._call("forget", instance_id=instance_id)

    def list(self) -> tuple[NodeReport, ...]:
        """Every node that was not forgotten, those that are off too.

        Raises:
            RehearsalError: The host does not answer.
        """
        return tuple(NodeReport(**item) for item in self._call("list"))

    def console(self, instance_id: str) -> bytes:
        """The last 64 KiB of a node's console, lines ended as a serial port does (CR LF).

        Raises:
            RehearsalError: There is no such node.
        """
        return base64.b64decode(self._call("console", instance_id=instance_id))

    def advance(self, seconds: float) -> None:
        """Move the clock that power-off timers follow.

        Raises:
            RehearsalError: The host does not answer.
        """
        self._call("advance", seconds=seconds)

    def give_credentials(self, credentials: RoleCredentials) -> None:
        """Set the keys that nodes with a role get from their metadata service.

        Raises:
            RehearsalError: The host does not answer.
        """
        self._call("credentials", **(asdict(credentials) | {"expires_at": credentials.expires_at.isoformat()}))

    def put_reach(self, instance_id: str, opened: Opened) -> None:
        """Let a node know whether callers reach its port 22, it reaches the internet, and what it may mount.

        Raises:
            RehearsalError: There is no such node.
        """
        self._call("reach", instance_id=instance_id, **asdict(opened))

    def keep_image(self, instance_id: str, image_id: str) -> None:
        """Let nodes of this image begin with what is installed on a node now.

        Raises:
            RehearsalError: There is no such node.
        """
        self._call("keep_image", instance_id=instance_id, image_id=image_id)

    def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace what goes wrong with nodes. Forgotten when the host ends.

        Raises:
            RehearsalError: The host does not answer.
        """
        self._call("faults", faults=[node_fault_json(fault) for fault in faults])

    def resident_mib(self) -> float:
        """Resident memory of the host process and of every process of its nodes; 0 where it cannot be told.

        Raises:
            RehearsalError: The host does not answer.
        """
        return float(self._call("resident"))

    def events(self) -> Iterator[PoweredOff]:
        """Nodes that end by themselves, as they do; blocks. One that nobody heard about comes first.

        An event counts as heard when the next one is asked for, so a listener that dies in between hears it again.
        The iterator ends when the host shuts down.

        Raises:
            RehearsalError: The host cannot be started.
        """
        with self._connected() as peer, peer.makefile("rwb") as stream:
            peer.settimeout(None)
            _send(stream, {"op": "events"})
            for line in stream:
                event = json.loads(line)
                if "instance_id" in event:
                    yield PoweredOff(event["instance_id"], event["reason"])
                    _send(stream, {"heard": event["instance_id"]})

    def running(self) -> bool:
        """Whether a host answers; never starts one."""
        try:
            sockets.connect(self._socket, 5.0).close()
        except OSError:
            return False
        return True

    def shutdown(self) -> None:
        """End every node and the host; returns when its process is gone. Nothing happens when none runs.

        Raises:
            RehearsalError: It did not end in time.
        """
        try:
            peer = sockets.connect(self._socket, _CALL_TIMEOUT_S)
        except OSError:
            return
        with peer, peer.makefile("rwb") as stream:
            _send(stream, {"op": "shutdown"})
            try:
                while stream.readline():
                    pass
            except OSError as err:
                raise RehearsalError(f"the node host of {self.directory} did not shut down: {err}") from err

    @property
    def _socket(self) -> Path:
        return self.directory / "host.sock"

    def _call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - as JSON has it
        line = b""
        for attempts_left in range(_ATTEMPTS if operation not in _NOT_TWICE else 1, 0, -1):
            try:
                line = self._ask({"op": operation, **arguments})
            except OSError as err:
                # A host that is just ending, or was killed, takes a connection along; the next attempt starts another.
                if attempts_left == 1:
                    raise RehearsalError(
                        f"the node host did not answer {operation}: {err}", hint=self._log_hint
                    ) from err
            if line:
                break
        if not line:
            raise RehearsalError(f"the node host ended during {operation}", hint=self._log_hint)
        answer = json.loads(line)
        if "error" in answer:
            raise RehearsalError(answer["error"], hint=answer.get("hint", ""))
        return answer["result"]

    def _ask(self, request: dict[str, Any]) -> bytes:
        with self._connected() as peer, peer.makefile("rwb") as stream:
            _send(stream, request)
            return stream.readline()

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with self._reach() as peer:
            yield peer

    def _reach(self) -> socket.socket:
        for attempt in range(_ATTEMPTS):
            try:
                return sockets.connect(self._socket, _CALL_TIMEOUT_S)
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                # A host that is just ending still holds the lock, so the next attempt waits a little.
                time.sleep(0.1 * attempt)
                self._spawn()
        try:
            return sockets.connect(self._socket, _CALL_TIMEOUT_S)
        except OSError as err:
            raise RehearsalError(
                f"the node host of {self.directory} did not start: {err}", hint=self._log_hint
            ) from err

    def _spawn(self) -> None:
        """Run the host, which returns once its detached child listens, or at once when another one does."""
        command = [sys.executable, "-m", "cloudgpu.rehearsal.nodes.host"]
        command += ["--directory", str(self.directory), "--home", str(self._home)]
        command += ["--envs", str(self._envs), "--isolation", self._isolation]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as err:
            raise RehearsalError("the node host did not start in time", hint=self._log_hint) from err
        if done.returncode != 0:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
            raise RehearsalError(f"the node host did not start: {last[0]}", hint=self._log_hint)

    @property
    def _log_hint(self) -> str:
        return f"see {self.directory / 'host.log'}"


def _home_around(directory: Path) -> Path:
    for folder in (directory, *directory.parents):
        if folder.name == "rehearsal":
            return folder.parent
    return directory


def _send(stream: io.BufferedRWPair, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()
