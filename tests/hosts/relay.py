"""A TCP relay to a host that can reset or stall a connection after a given number of bytes.

It runs in the network of the client commands. Put its address and port in the inventory, instead of those of the host,
to send every connection through it.
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
"""Address of the client in the network of the hosts."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Break:
    """When and how connections break.

    Attributes:
        how: `stall` stops forwarding in both directions and keeps both sides open, like a router that has lost the
            connection from its table; `reset` resets both sides.
        way: Direction in which bytes are counted: `up` to the host, `down` from it.
        after: Number of bytes that are forwarded before the connection breaks.
        times: Number of connections that break. -1 means all.
    """

    how: Literal["stall", "reset"]
    way: Literal["up", "down"] = "down"
    after: int = 0
    times: int = -1


@dataclass(frozen=True)
class Relay:
    """A running relay.

    Attributes:
        port: Its port at `ADDRESS`.
    """

    port: int
    process: subprocess.Popen[str]

    def set(self, how: Break | None) -> None:
        """Break current and new connections from now on. With None, no further connections break."""
        self._request({"break": None if how is None else asdict(how)})

    def counts(self) -> list[tuple[int, int]]:
        """Return the number of bytes forwarded up and down on each connection, in the order of connection."""
        return [(up, down) for up, down in self._request({"counts": True})]

    def _request(self, message: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def relay(lab: Lab, host: Host) -> Iterator[Relay]:
    """Run a relay to a host until the block ends."""
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
    """The two sockets of a connection, and the number of bytes forwarded in each direction."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.sides = {"up": (near, far), "down": (far, near)}
        self.passed = {"up": 0, "down": 0}
        self.broken = ""


class _Server:
    """The relay process. It reads commands from standard input."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._rule: Break | None = None
        self._broken = 0
        self._changed = asyncio.Event()
        self._connections: list[_Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until standard input is closed."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server((ADDRESS, 0))
        listener.setblocking(False)
        print(listener.getsockname()[1], flush=True)
        accepting = loop.create_task(self._accept(listener))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(self._handle(json.loads(line))), flush=True)
        accepting.cancel()

    def _handle(self, message: dict[str, Any]) -> object:
        if "counts" in message:
            return [(connection.passed["up"], connection.passed["down"]) for connection in self._connections]
        fields = message["break"]
        self._rule, self._broken = None if fields is None else Break(**fields), 0
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
            for sock in (near, far):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(far, self._target)
            connection = _Connection(near, far)
            self._connections.append(connection)
            for way in ("up", "down"):
                task = loop.create_task(self._forward(connection, way))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _allowed(self, connection: _Connection) -> int:
        """Return how many bytes may be forwarded at most; break the connection if it has reached the limit."""
        rule = self._rule
        if rule is None or connection.broken:
            return 0 if connection.broken else _CHUNK
        remaining = rule.after - connection.passed[rule.way]
        if remaining > 0:
            return min(_CHUNK, remaining)
        if rule.times >= 0 and self._broken >= rule.times:
            return _CHUNK
        self._broken += 1
        connection.broken = rule.how
        if rule.how == "reset":
            for sock in connection.sides["up"]:
                _reset(sock)
        return 0

    async def _forward(self, connection: _Connection, way: str) -> None:
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
        for sock in connection.sides["up"]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _reset(sock: socket.socket) -> None:
    """Close a socket with a reset instead of an orderly shutdown."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock.fileno())
        loop.remove_writer(sock.fileno())
    sock.close()


if __name__ == "__main__":
    asyncio.run(_Server((sys.argv[1], int(sys.argv[2]))).serve())
