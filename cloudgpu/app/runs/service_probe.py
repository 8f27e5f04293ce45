"""Asking a service whether it is ready, by the way that its user will take: through the tunnel."""

import http.client
import queue
import socket
from collections.abc import Sequence

from cloudgpu.app.runs.service_urls import Served
from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.launch.inventory import loopback, usual_local
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Command
from cloudgpu.text import command

_ANSWER_S = 5.0
_HERE = "127.0.0.1"
_GOOD_BELOW = 400
_LOOK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


class Probe:
    """One service, asked as often as need be. Opening it listens on this machine.

    Attributes:
        local: This machine's port that leads to it.
        why_moved: Why that is another number than its own, where it is.
    """

    def __init__(self, host: Host, service: Served) -> None:
        """Open the tunnel.

        Raises:
            StateError: No local port can be had.
        """
        self._ready = service.endpoint.ready
        self._port = service.endpoint.port
        self._troubles: queue.SimpleQueue[ConnectError | None] = queue.SimpleQueue()
        wanted = usual_local(host.node, self._port)
        self.local = host.forward(self._port, local=wanted, near=True, bound=service.bound, told=self._troubles.put)
        shared = wanted != self._port
        self.why_moved = (
            f"{self._port} is the node's, which shares this machine" if shared else f"{self._port} is in use"
        )

    def ask(self) -> str:
        """Ask once: why it is not ready, or nothing where it is."""
        while not self._troubles.empty():
            self._troubles.get_nowait()
        try:
            return self._asked_for_page(self._ready.http) if self._ready.http else self._connected()
        except (OSError, http.client.HTTPException) as err:
            return self._trouble() or f"GET {self._ready.http} on port {self._port} is not answered: {_words(err)}"

    def _asked_for_page(self, path: str) -> str:
        connection = http.client.HTTPConnection(_HERE, self.local, timeout=_ANSWER_S)
        try:
            connection.request("GET", path, headers={"Host": f"localhost:{self._port}", "Connection": "close"})
            status = connection.getresponse().status
        finally:
            connection.close()
        wanted = self._ready.status
        if status == wanted or (wanted is None and status < _GOOD_BELOW):
            return ""
        expected = f", {wanted} is expected" if wanted else ""
        return f"GET {path} on port {self._port} is answered with {status}{expected}"

    def _connected(self) -> str:
        """Whether the far end was reached: this end always is."""
        with socket.create_connection((_HERE, self.local), _ANSWER_S):
            try:
                trouble = self._troubles.get(timeout=_ANSWER_S)
            except queue.Empty:
                return f"port {self._port} is not answered in {_ANSWER_S:.0f} s"
        return "" if trouble is None else self._told(trouble)

    def _trouble(self) -> str:
        """Why the last connection did not come about, where that was it."""
        try:
            trouble = self._troubles.get_nowait()
        except queue.Empty:
            return ""
        return "" if trouble is None else self._told(trouble)

    def _told(self, trouble: ConnectError) -> str:
        return f"nothing listens on port {self._port}" if "cannot connect to" in trouble.message else trouble.message


def check_free(head: Host | None, services: Sequence[Served]) -> None:
    """Refuse a port on which something of the node's answers already: it would be taken for the service.

    Raises:
        UsageError: Something does.
        ConnectError: The node cannot be reached.
    """
    if head is None:
        return
    for one in services:
        port = one.endpoint.port
        if head.try_run(Command("python3", "-c", _LOOK, loopback(head.node), str(port))).ok:
            message = f"port {port} of node {head.node.index} is taken: something answers there already"
            change = (
                command("--set", f"launch.service.port={port + 1}") if one.main else f"give {one.name} another port"
            )
            raise UsageError(message, hint=f"{change}, or cancel the run that has it")


def _words(err: Exception) -> str:
    if isinstance(err, TimeoutError):
        return f"no answer in {_ANSWER_S:.0f} s"
    return str(err) or type(err).__name__
