"""Tunnels from a local loopback port to a port on a node."""

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable

from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.ssh.base import FailureCallback, ignore_failure
from cloudgpu.ssh.transport import LOST, OrderlyChannel

_CHUNK_BYTES = 1 << 16
_HERE = "127.0.0.1"
_BACKLOG = 256
_FIRST_UNPRIVILEGED = 1024
_ABOVE_PRIVILEGED = 8000
_LAST = 65535
_FULL_PAUSE_S = 0.2
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value with which `close` resets the connection: the client sees an error instead of the end of the data."""


class Tunnel:
    """A tunnel that listens on 127.0.0.1 and forwards every connection through a channel opened by `connect`."""

    def __init__(
        self,
        connect: Callable[[], OrderlyChannel],
        listener: socket.socket,
        on_outcome: FailureCallback = ignore_failure,
    ) -> None:
        self._connect = connect
        self._on_outcome = on_outcome
        self._listener = listener
        self._closed = threading.Event()
        self.port: int = listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True, name=f"cloudgpu-tunnel-{self.port}").start()

    def close(self) -> None:
        """Stop accepting connections. Open connections remain until the connection to the node closes."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept; close alone does not
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                local, _ = self._listener.accept()
            except OSError:
                self._closed.wait(_FULL_PAUSE_S)  # out of file descriptors: wait for a connection to close
                continue
            threading.Thread(target=self._carry, args=(local,), daemon=True).start()

    def _carry(self, local: socket.socket) -> None:
        """Copy both directions of one connection. If the node or its port is unreachable, close the connection."""
        with local:
            try:
                remote = self._connect()
            except ConnectError as err:
                self._on_outcome(err)
                return
            self._on_outcome(None)
            back = threading.Thread(target=_copy_to_caller, args=(remote, local), daemon=True)
            back.start()
            _copy_to_node(local, remote)
            back.join()
            with contextlib.suppress(*LOST):
                remote.close()


def _copy_to_node(local: socket.socket, remote: OrderlyChannel) -> None:
    """Copy from the caller to the node, then forward the end of input. The other direction stays open."""
    try:
        while piece := local.recv(_CHUNK_BYTES):
            remote.sendall(piece)
        remote.shutdown(socket.SHUT_WR)
    except LOST:
        with contextlib.suppress(*LOST):
            remote.close()  # one end is lost, so close the other


def _copy_to_caller(remote: OrderlyChannel, local: socket.socket) -> None:
    """Copy from the node to the caller. If the node's side fails, reset the caller's connection."""
    with contextlib.suppress(*LOST):
        while piece := remote.recv(_CHUNK_BYTES):
            local.sendall(piece)
    with contextlib.suppress(*LOST):
        if remote.eof_received:
            local.shutdown(socket.SHUT_WR)
        else:
            local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            local.shutdown(socket.SHUT_RD)  # wakes the other direction


def listen_on_loopback(port: int = 0) -> socket.socket:
    """Return a socket that listens on this loopback port; 0 picks any free port."""
    try:
        return socket.create_server((_HERE, port), backlog=_BACKLOG)
    except OSError as err:
        if port == 0:
            message = f"no local port is available for a tunnel: {err.strerror}"
            raise StateError(message, hint="close other tunnels or programs") from err
        if err.errno not in (errno.EADDRINUSE, errno.EACCES):
            message = f"port {port} on this machine cannot be used: {err.strerror}"
            raise StateError(message, hint="choose another port with --local") from err
        why = "is in use" if err.errno == errno.EADDRINUSE else "requires root"
        raise UsageError(f"port {port} on this machine {why}", hint=f"use port {_next_free(port)}") from err


def listen_on_next_free_port(port: int) -> socket.socket:
    """Return a socket that listens on this port, or on the next free port."""
    try:
        return listen_on_loopback(port)
    except UsageError:
        return listen_on_loopback(_next_free(port))


def _next_free(port: int) -> int:
    """Return the next free port above `port`, or any free port if the next hundred ports are in use.

    If `port` is below 1024 and therefore requires root, start the search at `port` + 8000. Return 0 if no port is free.
    """
    first = port + 1 if port >= _FIRST_UNPRIVILEGED else port + _ABOVE_PRIVILEGED
    for candidate in (*range(first, min(first + 100, _LAST + 1)), 0):
        with contextlib.suppress(OSError), socket.create_server((_HERE, candidate)) as listener:
            return int(listener.getsockname()[1])
    return 0
