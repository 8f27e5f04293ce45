"""A small threaded HTTP/1.1 server on 127.0.0.1 that rejects requests whose response no client could parse."""

import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, cast
from urllib.parse import parse_qsl

from cloudgpu import bounds
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.server.error_responses import INVALID_XML_CHARACTER, PROTOCOLS, error_response
from cloudgpu.rehearsal.server.http_message import (
    Application,
    DropConnectionError,
    Headers,
    HttpRequest,
    HttpResponse,
    LargeBodyGuard,
)

MAX_TAGS: Final = 50
"""Maximum number of tags on a resource, as on AWS."""
_MAX_FIELDS: Final = 20_000
_TAG_KEY: Final = re.compile(r"((?:.*\.)?Tag)\.\d+\.Key")
_MAX_BODY = 1 << 30
_LARGE_BODY = 1 << 20
"""Body size in bytes above which only signed requests are buffered, because any local process can connect."""
_PIECE_BYTES = 1 << 18
_IDLE_CONNECTION_S = 120
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Control characters to replace in header values: a line break would start another header or the body."""
_log = logging.getLogger(__name__)


def body_error(request: HttpRequest, service: str) -> HttpResponse | None:
    """Return an error for an invalid body, or None if the body is valid."""
    protocol = PROTOCOLS.get(service, "query")
    if protocol in ("json", "rest-json"):
        return _json_error(request.body, service)
    return None if protocol == "rest-xml" else _form_error(request, service)


def _json_error(body: bytes, service: str) -> HttpResponse | None:
    try:
        body_value = parse_json(body or b"{}")
    except ValueError as err:
        return error_response(service, "SerializationException", f"The body is not JSON: {err}", 400)
    if not isinstance(body_value, dict):
        return error_response(service, "SerializationException", "The body is not a JSON object.", 400)
    return None


def _form_error(request: HttpRequest, service: str) -> HttpResponse | None:
    try:
        text = request.body.decode("utf-8", "replace") or request.raw_query
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        message = f"The request contains more than {_MAX_FIELDS} parameters."
        return error_response(service, "MalformedQueryString", message, 400)
    for name, value in fields:
        # If the value were stored, clients could not parse any later response that contains it.
        if INVALID_XML_CHARACTER.search(name) or INVALID_XML_CHARACTER.search(value):
            message = f"The parameter {name[:100]!a} contains a character that is not allowed."
            return error_response(service, "InvalidParameterValue", message, 400)
    tags = Counter(match[1] for name, _ in fields if (match := _TAG_KEY.fullmatch(name)))
    if any(count > MAX_TAGS for count in tags.values()):
        message = f"The maximum number of tags for a resource, {MAX_TAGS}, is exceeded."
        return error_response(service, "TagLimitExceeded", message, 400)
    return None


class LoopbackServer(ThreadingHTTPServer):
    """An HTTP server for one application on 127.0.0.1; port 0 selects a free port."""

    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True

    def __init__(self, application: Application, guard: LargeBodyGuard, port: int = 0) -> None:
        self.application = application
        self.guard = guard
        self._requests_changed = threading.Condition()
        self._open_requests = 0
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def port(self) -> int:
        """Port on which the server listens."""
        return int(self.server_address[1])

    def begin(self) -> None:
        """Record that a request has started."""
        with self._requests_changed:
            self._open_requests += 1

    def finish(self) -> None:
        """Record that a request has finished: its response was sent or its client disconnected."""
        with self._requests_changed:
            self._open_requests -= 1
            self._requests_changed.notify_all()

    def drain(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for requests in progress to finish, so that the process can exit."""
        with self._requests_changed:
            self._requests_changed.wait_for(lambda: self._open_requests == 0, timeout=limit_s)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - set by socketserver
        """Log a failed connection, because the default implementation prints to stderr without a timestamp."""
        _log.error("connection from %s failed", client_address, exc_info=True)


def _is_large(length: str) -> bool:
    """Return True if a body of this Content-Length requires a signature. Invalid lengths are rejected later."""
    try:
        return bounds.parse_whole_number(length) > _LARGE_BODY
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "cloudgpu-rehearsal"
    sys_version = ""
    timeout = _IDLE_CONNECTION_S
    disable_nagle_algorithm = True  # otherwise a response sent as two packets is delayed by 40 ms
    wbufsize = -1

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """Send `100 Continue` immediately; leaving it in the buffer would delay every upload by a second."""
        if _is_large(self.headers.get("Content-Length") or ""):
            rejection = cast("LoopbackServer", self.server).guard(self._head())
            if rejection is not None:
                self.close_connection = True
                self._send(rejection)
                return False
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def _serve(self) -> None:
        server = cast("LoopbackServer", self.server)
        server.begin()
        try:
            self._exchange(server)
        finally:
            server.finish()

    def _exchange(self, server: LoopbackServer) -> None:
        head = self._head()
        try:
            rejection, body = self._read_body(head, server.guard)
        except ValueError as err:
            self.close_connection = True
            self._send(HttpResponse(400, {"Content-Type": "text/plain"}, str(err).encode()))
            return
        if rejection is not None:
            self._send(rejection)
            return
        request = HttpRequest(head.method, head.target, head.headers, body)
        try:
            response = server.application(request)
        except DropConnectionError:
            self._drop_connection()
            return
        except Exception:
            self.close_connection = True
            self._send(
                HttpResponse(500, {"Content-Type": "text/plain"}, b"bug in the rehearsal cloud: see its server.log")
            )
            raise
        self._send(response)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _serve  # noqa: N815 - names set by http.server

    def _head(self) -> HttpRequest:
        fields: dict[str, str] = {}
        for name, value in self.headers.items():
            fields[name] = f"{fields[name]},{value}" if name in fields else value
        return HttpRequest(self.command, self.path, Headers(fields))

    def _read_body(self, head: HttpRequest, guard: LargeBodyGuard) -> tuple[HttpResponse | None, bytes]:
        """Read the whole body, whether chunked or not. The body of a rejected request is read and discarded."""
        chunked = "chunked" in (self.headers.get("Transfer-Encoding") or "").lower()
        rejection: HttpResponse | None = None
        parts: list[bytes] = []
        total = 0
        for piece in self._chunks() if chunked else self._pieces(int(self.headers.get("Content-Length") or 0)):
            before, total = total, total + len(piece)
            if total > _MAX_BODY:
                message = "the request body is too large"
                raise ValueError(message)
            if before <= _LARGE_BODY < total:
                rejection = guard(head)
            if rejection is None:
                parts.append(piece)
            else:
                parts.clear()
        return rejection, b"".join(parts)

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(1024).split(b";")[0].strip() or b"0", 16):
            yield from self._pieces(size)
            self.rfile.readline(8)
        while self.rfile.readline(65537).strip():
            continue

    def _pieces(self, size: int) -> Iterator[bytes]:
        if not 0 <= size <= _MAX_BODY:
            message = f"invalid request body size: {size} bytes"
            raise ValueError(message)
        while size:
            piece = self.rfile.read(min(size, _PIECE_BYTES))
            if not piece:
                message = "the connection was closed in the middle of a request body"
                raise ConnectionError(message)
            size -= len(piece)
            yield piece

    def _send(self, response: HttpResponse) -> None:
        self.send_response(response.status)
        fields = Headers(response.headers).without("transfer-encoding", "connection", "server", "date")
        bodiless = self.command == "HEAD" or response.status in (204, 304)
        if not (bodiless and fields.find("content-length")):
            fields = fields.with_fields({"Content-Length": str(len(response.body))})
        for name, value in fields.items():
            self.send_header(name, _CONTROL_CHARACTERS.sub(" ", value).encode("latin-1", "replace").decode("latin-1"))
        self.end_headers()
        if not bodiless:
            self.wfile.write(response.body)
        self.wfile.flush()

    def _drop_connection(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing; the endpoint logs calls without their query strings, which may contain signatures."""
