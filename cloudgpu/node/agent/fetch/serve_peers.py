"""`hand`: serve files or an image archive to other nodes while the caller reads the output.

Connections use TLS with a certificate created for this call, and clients must send a token. If a dataset has a source,
only files that were verified and have not changed since are served.
"""

from __future__ import annotations

import hmac
import http.client
import os
import re
import select
import socket
import ssl
import sys
import tempfile
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any, Callable, Dict

from ..containers import image_transfer
from ..untrusted_data import AgentError
from .download import Record

ARCHIVE = "archive"
"""URL path of an image archive."""
_READ_TIMEOUT_S = 60.0
_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
Emit = Callable[[Dict[str, Any]], None]


def serve_peers(spec: dict[str, Any], emit: Emit) -> None:
    """Print `{"port", "size"}` once other nodes may connect, and exit when the caller stops reading the output."""
    source: Folder | Archive
    if spec.get("image"):
        source = Archive(image_transfer.write_archive(str(spec["image"]), lambda text: emit({"progress": text})))
    else:
        source = Folder(str(spec["folder"]), Record(spec))
    server = _Server(str(spec["address"]), source, str(spec["token"]), _context(spec))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    emit({"port": server.server_port, "size": source.size})
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # no events requested: poll always reports a hang-up
    poll.poll()
    os._exit(0)  # cut off transfers in progress, because no caller waits for them


class Folder:
    """A source that serves the files below a directory."""

    size = 0

    def __init__(self, root: str, record: Record) -> None:
        self._root = os.path.realpath(root)
        self._record = record

    def open(self, name: str) -> tuple[IO[bytes], str] | None:
        """Open a file and return it with its ETag at the source, or return None if the file may not be served."""
        path = os.path.join(self._root, name)
        if "\0" in name or os.path.normpath(path) != path or os.path.realpath(path) != path:
            return None
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115 - the caller closes it
        except OSError:
            return None
        mark = self._record.mark_of(path, os.fstat(file.fileno()))
        if mark is None:
            file.close()
            return None
        return file, mark[len("etag ") :] if mark.startswith("etag ") else ""


class Archive:
    """A source that serves a single unnamed file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    def open(self, name: str) -> tuple[IO[bytes], str] | None:
        """Open the archive with a separate file position, or return None for any other name."""
        if name != ARCHIVE:
            return None
        return open(f"/proc/self/fd/{self._file.fileno()}", "rb", buffering=0), ""


class _Server(ThreadingHTTPServer):
    """Server with a thread per connection.

    Each thread also does its connection's TLS handshake, so a silent peer does not block other peers.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, source: Folder | Archive, token: str, context: ssl.SSLContext) -> None:
        self.source = source
        self.token = token
        self._context = context
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            super().__init__((address, 0), _PeerHandler)
        except OSError as error:
            message = f"cannot listen on {address}, this node's private address: {error.strerror}"
            raise AgentError(message, hint="set share: each, or correct the host's private address") from error

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library declares it
        """Do the TLS handshake, then serve the connection."""
        request.settimeout(_READ_TIMEOUT_S)
        with self._context.wrap_socket(request, server_side=True) as tls_socket:
            super().finish_request(tls_socket, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Ignore peers that disconnect or do not speak TLS. They report their own errors."""


class _PeerHandler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _READ_TIMEOUT_S

    def do_GET(self) -> None:
        """Serve a file or a range of it."""
        authorization = self.headers.get("Authorization", "")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.server.token}".encode()):
            self._empty(http.client.FORBIDDEN)
            return
        opened = self.server.source.open(urllib.parse.unquote(self.path[1:], errors="surrogateescape"))
        if opened is None:
            self._empty(http.client.NOT_FOUND)
            return
        file, etag = opened
        with file:
            self._answer(file, etag)

    def _answer(self, file: IO[bytes], etag: str) -> None:
        size = os.fstat(file.fileno()).st_size
        expected_etag = self.headers.get("If-Match", "").strip('"')
        if expected_etag and expected_etag != etag:
            self._empty(http.client.PRECONDITION_FAILED)
            return
        part = _RANGE.fullmatch(self.headers.get("Range", ""))
        first = int(part[1]) if part else 0
        end = min(size, int(part[2]) + 1) if part and part[2] else size
        if part and first >= end:
            self._empty(http.client.REQUESTED_RANGE_NOT_SATISFIABLE)
            return
        self.send_response(http.client.PARTIAL_CONTENT if part else http.client.OK)
        self.send_header("Content-Length", str(end - first))
        if part:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{size}")
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()
        self._send(file, first, end)

    def _send(self, file: IO[bytes], first: int, end: int) -> None:
        while first < end:
            data = os.pread(file.fileno(), min(_CHUNK, end - first), first)
            if not data:  # the file has shrunk; the client will notice the missing bytes
                self.close_connection = True
                return
            self.wfile.write(data)
            first += len(data)

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - as the library names it
        """Log nothing, because standard error is for errors."""


def _context(spec: dict[str, Any]) -> ssl.SSLContext:
    """Return the TLS context. The private key is on disk only while it is being loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(str(spec["key"]) + str(spec["cert"]))
        file.flush()
        context.load_cert_chain(file.name)
    return context
