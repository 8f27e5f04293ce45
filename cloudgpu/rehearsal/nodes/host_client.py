"""Client for the node host. It needs no third-party package, and starts the host if no host is running."""

import base64
import fcntl
import io
import json
import os
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
from cloudgpu.files import open_descriptor
from cloudgpu.rehearsal.faults.node_faults import NodeFault, node_fault_json
from cloudgpu.rehearsal.nodes import addresses
from cloudgpu.rehearsal.nodes.values import (
    Isolation,
    NodeReport,
    NodeSpec,
    Opened,
    PoweredOff,
    RoleCredentials,
    StartedNode,
    credentials_to_json,
    spec_to_json,
)

_CALL_TIMEOUT_S = 150.0
_START_TIMEOUT_S = 30.0
_EXIT_S = 30.0
_EXIT_POLL_S = 0.02
_ATTEMPTS = 5
_NOT_TWICE = frozenset({"advance", "reboot"})
"""Operations that are not idempotent and are therefore not retried."""


class NodeHostClient:
    """Client for one state home's node host. Thread-safe: every call opens its own connection."""

    def __init__(
        self,
        directory: Path,
        *,
        home: Path | None = None,
        envs: Path | None = None,
        isolation: Isolation = "auto",
    ) -> None:
        """Create a client without starting the host.

        Args:
            directory: Directory of the host's socket, log, records and disks.
            home: State home, which is hidden from nodes. Default: the parent of the `rehearsal` directory around
                `directory`, or `directory` itself if it is not inside a `rehearsal` directory.
            envs: Directory of the shared Python environments; default `<home>/envs`.
            isolation: Isolation of the nodes if this client starts the host; has no effect on a running host.
        """
        self.directory = directory.absolute()
        self._home = (home or _home_around(self.directory)).absolute()
        self._envs = (envs or self._home / "envs").absolute()
        self._isolation = isolation
        self._closed = False

    def start(self, spec: NodeSpec) -> StartedNode:
        """Boot a new node or a node that is off. Return once its SSH server listens.

        If the node is already running, only return its address. If boot hooks take longer than a minute, return before
        the SSH server listens.
        """
        return StartedNode(**self._call("start", spec=spec_to_json(spec)))

    def stop(self, instance_id: str) -> None:
        """Stop a node. Return once all its processes have exited and its disk is removed. Idempotent."""
        self._call("stop", instance_id=instance_id)

    def power_off(self, instance_id: str) -> None:
        """Kill all processes of a node but keep its disk, like StopInstances. `start` boots the node again."""
        self._call("power_off", instance_id=instance_id)

    def reboot(self, instance_id: str) -> None:
        """Kill all processes of a node and boot it from the same disk."""
        self._call("reboot", instance_id=instance_id)

    def forget(self, instance_id: str) -> None:
        """Stop a node and remove its record, console and disk."""
        self._call("forget", instance_id=instance_id)

    def list(self) -> tuple[NodeReport, ...]:
        """Return a report on every node, including nodes that are off but not nodes removed with `forget`."""
        return tuple(NodeReport(**item) for item in self._call("list"))

    def console(self, instance_id: str) -> bytes:
        """Return the last 64 KiB of a node's console with CR LF line endings, as on a serial port."""
        return base64.b64decode(self._call("console", instance_id=instance_id))

    def advance(self, seconds: float) -> None:
        """Advance the clock for the nodes' timers and spot interruptions."""
        self._call("advance", seconds=seconds)

    def set_credentials(self, credentials: RoleCredentials) -> None:
        """Set the credentials that the metadata service returns to nodes with a role."""
        self._call("credentials", **credentials_to_json(credentials))

    def set_access(self, instance_id: str, opened: Opened) -> None:
        """Set whether a node accepts SSH, whether it can reach the internet, and what it may mount."""
        self._call("reach", instance_id=instance_id, **asdict(opened))

    def record_image_packages(self, instance_id: str, image_id: str) -> None:
        """Record a node's installed packages as the packages of an image created from the node."""
        self._call("keep_image", instance_id=instance_id, image_id=image_id)

    def put_faults(self, faults: Sequence[NodeFault]) -> None:
        """Replace all node faults. The host keeps faults only in memory, so a new host has no faults."""
        self._call("faults", faults=[node_fault_json(fault) for fault in faults])

    def events(self) -> Iterator[PoweredOff]:
        """Yield an event for each node that powers itself off, starting with earlier unacknowledged events.

        The iterator blocks until the next event, and ends when the host shuts down. Requesting the next event
        acknowledges the previous event. If the client exits without acknowledging an event, the host sends the event
        to the next client.
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
        """Return True if a host is running. This does not start a host."""
        try:
            addresses.connect(self._socket, 5.0).close()
        except OSError:
            return False
        return True

    def exiting(self) -> bool:
        """Return True if a host exists but accepts no calls, because it is stopping its nodes or still starting."""
        return not self.running() and self._is_locked()

    def close(self) -> None:
        """Shut down the host, and start no other: a call that another thread is making or retrying fails."""
        self._closed = True
        self.shutdown()

    def shutdown(self) -> None:
        """Stop all nodes, remove their disks, and stop the host. Return once the host has exited. Idempotent."""
        deadline = time.monotonic() + _EXIT_S
        while True:
            self._ask_to_exit()
            if not self._is_locked():
                return
            if time.monotonic() > deadline:
                raise RehearsalError(f"the node host of {self.directory} did not exit", hint=self._log_hint)
            time.sleep(_EXIT_POLL_S)

    def _ask_to_exit(self) -> None:
        """Ask the host to shut down, and wait until it has stopped its nodes. A host without a socket is exiting."""
        try:
            peer = addresses.connect(self._socket, _CALL_TIMEOUT_S)
        except OSError:
            return
        with peer, peer.makefile("rwb") as stream:
            try:
                _send(stream, {"op": "shutdown"})
                while stream.readline():
                    pass
            except TimeoutError as err:
                raise RehearsalError(f"the node host of {self.directory} did not shut down: {err}") from err
            except OSError:
                return  # it exited

    def _is_locked(self) -> bool:
        """Return True while a host process exists: it holds its lock until it exits."""
        try:
            lock = open_descriptor(self.directory / "host.lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @property
    def _socket(self) -> Path:
        return self.directory / "host.sock"

    def _call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - any JSON value
        line = b""
        for attempts_left in range(_ATTEMPTS if operation not in _NOT_TWICE else 1, 0, -1):
            try:
                line = self._ask({"op": operation, **arguments})
            except OSError as err:
                # A host that is exiting, or was killed, drops the connection; the next attempt starts another host.
                if attempts_left == 1:
                    raise RehearsalError(
                        f"the node host did not respond to {operation}: {err}", hint=self._log_hint
                    ) from err
            if line:
                break
        if not line:
            raise RehearsalError(f"the node host exited during {operation}", hint=self._log_hint)
        response = json.loads(line)
        if "error" in response:
            raise RehearsalError(response["error"], hint=response.get("hint", ""))
        return response["result"]

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
                return addresses.connect(self._socket, _CALL_TIMEOUT_S)
            except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
                # An exiting host still holds the lock, so wait a little before the next attempt.
                time.sleep(0.1 * attempt)
                self._spawn()
        try:
            return addresses.connect(self._socket, _CALL_TIMEOUT_S)
        except OSError as err:
            raise RehearsalError(
                f"the node host of {self.directory} did not start: {err}", hint=self._log_hint
            ) from err

    def _spawn(self) -> None:
        """Run the host command, which returns once a host is listening."""
        if self._closed:
            raise RehearsalError("the rehearsal cloud is being stopped")
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
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no error message"]
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
