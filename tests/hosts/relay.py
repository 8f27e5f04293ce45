"""A TCP relay in front of a host that breaks connections on command: at a byte, and by resetting or by falling silent.

It runs in the network of the caller, because neither pytest nor the hosts' own servers can cut an encrypted stream at
a chosen byte. An inventory that names its port in place of the host's leads every connection through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.hosts.lab import Host, Lab

ADDRESS = "10.77.0.1"
"""The caller's own address in its network; hosts reach it too."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Break:
    """Where connections break, and how.

    Attributes:
        how: `stall` forwards nothing more, in either direction, and keeps both sides open for good, as a router does
            that forgot the connection; `reset` resets both sides.
        way: Which bytes are counted: `up` to the host, `down` from it.
        after: Bytes of the connection that still pass.
        times: How many connections break; the others pass. -1 is all.
    """

    how: Literal["stall", "reset"]
    way: Literal["up", "down"] = "down"
    after: int = 0
    times: int = -1


@dataclass(frozen=True)
class Relay:
    """A running relay.

    Attributes:
        port: Where it listens, at `ADDRESS`.
    """

    port: int
    process: subprocess.Popen[str]

    def set(self, how: Break | None) -> None:
        """Break connections from now on, those that are open too; None leaves the others alone."""
        self._ask({"break": None if how is None else asdict(how)})

    def counts(self) -> list[tuple[int, int]]:
        """Bytes that passed up and down, by connection in the order in which they were made."""
        return [(up, down) for up, down in self._ask({"counts": True})]

    def forget(self) -> None:
        """Count connections from anew."""
        self._ask({"forget": True})

    def _ask(self, message: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def relay(lab: Lab, host: Host) -> Iterator[Relay]:
    """Relay connections to a host for as long as the block runs."""
    root = Path(__file__).parents[2]
    argv = lab.client_argv([sys.executable, "-m", "tests.hosts.relay", host.address, str(host.port)])
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
    assert process.stdout is not None
    try:
        yield Relay(json.loads(process.stdout.readline()), process)
    finally:
        process.kill()
        process.communicate()


class _Connection:
    """One connection: two directions that pass bytes until the rule says otherwise."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.sides = {"up": (near, far), "down": (far, near)}
        self.passed = {"up": 0, "down": 0}
        self.broken = ""


class _Server:
    """Accepts connections, and obeys what stands on standard input."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._rule: Break | None = None
        self._broken = 0
        self._changed = asyncio.Event()
        self._connections: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until standard input ends."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server((ADDRESS, 0))
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        accepting = loop.create_task(self._accept(listener))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(self._obey(json.loads(line))), flush=True)
        accepting.cancel()

    def _obey(self, message: dict[str, Any]) -> object:
        if "counts" in message:
            return [(one.passed["up"], one.passed["down"]) for one in self._connections]
        if "forget" in message:
            self._connections.clear()
            return True
        given = message["break"]
        self._rule, self._broken = None if given is None else Break(**given), 0
        for connection in self._connections:
            self._allowed(connection)
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(listener)
            far = socket.socket()
            for one in (near, far):
                one.setblocking(False)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(far, self._target)
            connection = _Connection(near, far)
            self._connections.append(connection)
            for way in ("up", "down"):
                task = loop.create_task(self._pass(connection, way))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _allowed(self, connection: _Connection) -> int:
        """How many bytes may pass at most in either direction; breaks the connection where its time has come."""
        rule = self._rule
        if rule is None or connection.broken:
            return 0 if connection.broken else _CHUNK
        left = rule.after - connection.passed[rule.way]
        if left > 0:
            return min(_CHUNK, left)
        if rule.times >= 0 and self._broken >= rule.times:
            return _CHUNK
        self._broken += 1
        connection.broken = rule.how
        if rule.how == "reset":
            for one in connection.sides["up"]:
                _reset(one)
        return 0

    async def _pass(self, connection: _Connection, way: str) -> None:
        loop = asyncio.get_running_loop()
        source, to = connection.sides[way]
        with contextlib.suppress(OSError):
            while connection.broken != "reset":
                changed = self._changed
                allowed = self._allowed(connection)
                if not allowed:
                    await changed.wait()
                    continue
                piece = await loop.sock_recv(source, allowed)
                while connection.broken == "stall":
                    await self._changed.wait()
                if not piece:
                    break
                await loop.sock_sendall(to, piece)
                connection.passed[way] += len(piece)
                self._allowed(connection)
        for one in connection.sides["up"]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _reset(one: socket.socket) -> None:
    """Close with a reset in place of an orderly end."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        loop = asyncio.get_running_loop()
        loop.remove_reader(one.fileno())
        loop.remove_writer(one.fileno())
    one.close()


if __name__ == "__main__":
    asyncio.run(_Server((sys.argv[1], int(sys.argv[2]))).serve())
