"""An HTTP server that sends exactly the given bytes, valid or not, and records the requests."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

PIECE = b"x" * 65536


@dataclass(frozen=True)
class Request:
    """Method, path and headers of a request. Header names are lowercase."""

    method: str
    path: str
    headers: dict[str, str]


Responder = Callable[[Request], Iterable[bytes]]
"""Function that yields the bytes to send. After the last ones, the server closes the connection."""


@dataclass
class RawServer:
    """A server on a loopback address that sends what `respond` yields for a request."""

    respond: Responder
    host: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server((self.host, 0))
        self._open: set[socket.socket] = set()
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, or until the server is stopped."""
        self.stopped.wait(seconds)

    def close(self) -> None:
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _listen(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            request = _read(stream)
            if request is not None:
                self.requests.append(request)
                for piece in self.respond(request):
                    if self.stopped.is_set():
                        break
                    connection.sendall(piece)
                connection.shutdown(socket.SHUT_WR)
                # Read the rest of the request: unread data would reset the connection and could discard the response.
                connection.settimeout(1)
                while connection.recv(65536):
                    pass
        self._open.discard(connection)


def _read(stream) -> Request | None:
    first = stream.readline().decode("latin-1").split()
    headers = {}
    for line in iter(stream.readline, b""):
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            break
        headers[name.strip().lower()] = value.strip()
    if len(first) != 3 or not first[2].startswith("HTTP/"):
        return None  # a TLS handshake: clients try TLS first with a registry on this machine
    stream.read(int(headers.get("content-length", "0")))
    return Request(first[0], first[1], headers)


@contextlib.contextmanager
def raw_server(respond: Responder, host: str = "127.0.0.1") -> Iterator[RawServer]:
    """Run a raw server until the block ends."""
    server = RawServer(respond, host)
    try:
        yield server
    finally:
        server.close()


def http_response(status: str = "200 OK", body: bytes = b"", **headers: str) -> bytes:
    """Return the bytes of a complete response. `headers` override the computed ones, for example `content_length`."""
    all_headers = {"content-length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {text}" for name, text in all_headers.items() if text)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
