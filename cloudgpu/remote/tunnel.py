"""A port of the caller's loopback that leads to a port on a node."""

import contextlib
import socket
import threading
from collections.abc import Callable

from cloudgpu.errors import ConnectError, StateError
from cloudgpu.remote.channel import OrderlyChannel
from cloudgpu.remote.link import LOST

_CHUNK_BYTES = 1 << 16


class Tunnel:
    """Listens on 127.0.0.1 and carries every connection over the channel that `dial` opens for it."""

    def __init__(self, dial: Callable[[], OrderlyChannel]) -> None:
        self._dial = dial
        try:
            self._listener = socket.create_server(("127.0.0.1", 0))
        except OSError as err:
            raise StateError(
                f"no local port for a tunnel: {err.strerror}", hint="close tunnels or other programs"
            ) from err
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections; those that are open end with the connection to the node."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept; close alone does not
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(local,), daemon=True).start()

    def _carry(self, local: socket.socket) -> None:
        """Both directions of one connection. A node that cannot be reached shows as a closed connection."""
        with local:
            try:
                remote = self._dial()
            except ConnectError:
                return
            back = threading.Thread(target=_pump, args=(remote, local), daemon=True)
            back.start()
            _pump(local, remote)
            back.join()
            remote.close()


def _pump(source: socket.socket | OrderlyChannel, sink: socket.socket | OrderlyChannel) -> None:
    """Copy until the source ends, then pass the end on: half-closed connections stay half open."""
    with contextlib.suppress(*LOST):
        while piece := source.recv(_CHUNK_BYTES):
            sink.sendall(piece)
    with contextlib.suppress(*LOST):
        sink.shutdown(socket.SHUT_WR)
