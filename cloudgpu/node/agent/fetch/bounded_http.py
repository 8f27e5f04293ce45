"""HTTP requests that never follow redirects, with limits on time, speed, size and allowed redirect targets.

A socket timeout only limits silence. A server that sends one byte every few seconds, endless headers or one `100
Continue` after another could keep a client busy forever, and a redirect could lead to services on the client's own
machine. The CLI also uses this module, on the user's machine.
"""

from __future__ import annotations

import errno
import http.client
import io
import ipaddress
import socket
import ssl
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Mapping

_HEAD_BYTES = 1 << 20
_READ_AHEAD = 1 << 16
_LONGEST_NAME = 253
_LONGEST_LABEL = 63
REDIRECTS = (301, 302, 303, 307, 308)


class LocalAddressError(PermissionError):
    """A server redirected to an address on this machine or its local link."""

    def __init__(self) -> None:
        super().__init__(errno.EACCES, "the server redirects to an address on this machine")


@dataclass(frozen=True)
class MinimumSpeed:
    """Minimum speed and time limits of a response.

    Attributes:
        head_s: Time limit for the status line and headers together, in seconds.
        window_s: Seconds of waiting for data in which at least `least_bytes` must arrive. Other time does not count.
        least_bytes: Minimum bytes per window. Any usable connection is faster than 64 KiB per minute.
        whole_s: Time limit for the whole response, in seconds; None for a download, which only needs to make progress.
    """

    head_s: float = 60.0
    window_s: float = 60.0
    least_bytes: int = 1 << 16
    whole_s: float | None = None
    clock: Callable[[], float] = time.monotonic


class PacedStream(io.RawIOBase):
    """Response stream that raises an error if the bytes arrive too slowly."""

    def __init__(self, sock: socket.socket, pace: MinimumSpeed) -> None:
        super().__init__()
        self._sock = sock
        self._raw: Any = sock.makefile("rb", buffering=0)
        self._pace = pace
        self._read_timeout_s = sock.gettimeout()
        self._began = pace.clock()
        self._head: int | None = None
        self._waited = 0.0
        self._received = 0

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` requires."""
        return True

    def begin_head(self) -> None:
        """Apply the limits for headers from now on."""
        self._began, self._head = self._pace.clock(), 0

    def end_head(self) -> None:
        """Apply the limits for a body from now on."""
        self._head = None

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - a writable buffer
        """Read the next bytes into the buffer, and return their number, which is 0 at the end of the stream."""
        before = self._pace.clock()
        self._sock.settimeout(self._timeout(before))
        try:
            count = self._raw.readinto(buffer) or 0
        finally:
            self._sock.settimeout(self._read_timeout_s)
        self._count(count, self._pace.clock() - before)
        return int(count)

    def close(self) -> None:
        """Close the stream. The connection stays open."""
        self._raw.close()
        super().close()

    def _timeout(self, now: float) -> float | None:
        deadlines = [] if self._pace.whole_s is None else [self._began + self._pace.whole_s]
        if self._head is not None:
            deadlines.append(self._began + self._pace.head_s)
        remaining = [deadline - now for deadline in deadlines]
        if any(seconds <= 0 for seconds in remaining):
            raise _too_slow("too slow: the response was not complete in time")
        return min([*remaining, *([] if self._read_timeout_s is None else [self._read_timeout_s])], default=None)

    def _count(self, count: int, waited: float) -> None:
        if self._head is not None:
            self._head += count
            if self._head > _HEAD_BYTES:
                raise OSError(errno.EMSGSIZE, "the headers are too long")
            return
        self._waited, self._received = self._waited + waited, self._received + count
        if self._waited >= self._pace.window_s and count:
            if self._received < self._pace.least_bytes:
                raise _too_slow(f"too slow: {self._received} bytes in {self._waited:.0f} s")
            self._waited, self._received = 0.0, 0


class BoundedResponse(http.client.HTTPResponse):
    """A response that is read through a `PacedStream`."""

    def __init__(self, sock: socket.socket, *args: Any, pace: MinimumSpeed, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self._paced = PacedStream(sock, pace)
        self.fp = io.BufferedReader(self._paced, _READ_AHEAD)

    def begin(self) -> None:
        """Read the status line and headers."""
        self._paced.begin_head()
        super().begin()
        self._paced.end_head()


def apply_limits(connection: http.client.HTTPConnection, pace: MinimumSpeed, *, guarded: bool) -> None:
    """Apply the limits to a connection that is not open yet.

    `guarded` means that a server, not the user, chose the address, which must therefore not be on this machine.
    """
    connection.response_class = partial(BoundedResponse, pace=pace)  # type: ignore[assignment]
    if guarded:
        # The address is checked after the name is resolved and before the first byte is sent.
        connection._create_connection = _connect_to_other_machine  # type: ignore[attr-defined]


def redirect_url(here: str, location: str) -> str:
    """Return the URL that a redirect from `here` leads to."""
    # Quote invalid characters as browsers do: a header may contain bytes that a URL may not.
    url = urllib.parse.urljoin(here, urllib.parse.quote(location, safe=string.punctuation, encoding="iso-8859-1"))
    check_address(url)
    if here.startswith("https:") and not url.startswith("https:"):
        raise ValueError("redirect from TLS to plain HTTP")
    return url


def check_address(url: str) -> None:
    """Reject a URL that is not http or https or has no valid host name."""
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    labels = host.rstrip(".").split(".")
    if parts.scheme not in ("http", "https") or not host or parts.port == 0:
        raise ValueError("not an http or https URL")
    if len(host) > _LONGEST_NAME or (":" not in host and not all(0 < len(label) <= _LONGEST_LABEL for label in labels)):
        raise ValueError("not a valid host name")


def must_block_local(first: str, url: str) -> bool:
    """Return True if `url`, to which the server at `first` redirects, must not be on this machine.

    Only the user, or a service on this machine, may choose a URL on this machine.
    """
    first_host, host = urllib.parse.urlsplit(first).hostname or "", urllib.parse.urlsplit(url).hostname or ""
    return first_host != host and not (is_loopback(first_host) and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Return True for `localhost` and for the addresses of the loopback interface."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_local(host: str) -> bool:
    """Return True for `localhost` and for loopback, link-local, unspecified and multicast addresses.

    The address of the instance metadata service is link-local.
    """
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _connect_to_other_machine(*args: Any, **kwargs: Any) -> socket.socket:  # noqa: ANN401 - as socket.create_connection
    sock = socket.create_connection(*args, **kwargs)
    if is_local(sock.getpeername()[0]):
        sock.close()
        raise LocalAddressError
    return sock


def _too_slow(text: str) -> OSError:
    return TimeoutError(errno.ETIMEDOUT, text)


@dataclass(frozen=True)
class SourceResponse:
    """An HTTP response. Header names are lower case; the values of a repeated header are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Client:
    """An HTTP client and its limits.

    Attributes:
        timeout_s: Time limit in seconds, both for a period of silence and for the whole response.
        most_bytes: Maximum number of body bytes to read. Longer bodies are cut off.
        context: TLS context; None for the system's certificate authorities.
        proxies: True to use the proxies configured in the environment.
    """

    timeout_s: float
    most_bytes: int
    context: ssl.SSLContext | None = None
    proxies: bool = True

    def send(
        self, url: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes | None = None, guarded: bool
    ) -> SourceResponse:
        """Send one request.

        `guarded` means that a server chose the URL, which must therefore not be on this machine.
        """
        check_address(url)
        if guarded and is_local(urllib.parse.urlsplit(url).hostname or ""):
            raise LocalAddressError
        request = urllib.request.Request(url, data=body, method=method, headers=dict(headers))  # noqa: S310 - checked
        try:
            with self._opener(guarded=guarded).open(request, timeout=self.timeout_s) as response:
                return self._answer(response.status, response.headers, response)
        except urllib.error.HTTPError as error:
            with error:
                return self._answer(error.code, error.headers, error.fp)

    def _answer(self, status: int, headers: Any, response: Any) -> SourceResponse:  # noqa: ANN401 - urllib's own
        body = response.read(self.most_bytes) if self.most_bytes else b""
        # If `read` gets a size, http.client treats a lost connection as the end of the body.
        if len(body) < self.most_bytes and getattr(response, "length", None):
            raise http.client.IncompleteRead(body, response.length)
        merged: dict[str, str] = {}
        for key, value in headers.items():
            name = key.lower()
            merged[name] = f"{merged[name]}, {value}" if name in merged else str(value)
        return SourceResponse(status, merged, body)

    def _opener(self, *, guarded: bool) -> urllib.request.OpenerDirector:
        pace = MinimumSpeed(head_s=self.timeout_s, whole_s=self.timeout_s, least_bytes=0)
        https = _Https(pace, self.context, guarded=guarded)
        handlers: list[Any] = [_NoRedirects(), _Http(pace, guarded=guarded), https]
        return urllib.request.build_opener(*handlers, *([] if self.proxies else [urllib.request.ProxyHandler({})]))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def http_error_302(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - urllib's own
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Http(urllib.request.HTTPHandler):
    def __init__(self, pace: MinimumSpeed, *, guarded: bool) -> None:
        super().__init__()
        self._pace, self._guarded = pace, guarded

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_bound(http.client.HTTPConnection, req, self._pace, guarded=self._guarded), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, pace: MinimumSpeed, trust: ssl.SSLContext | None, *, guarded: bool) -> None:
        # HTTPSHandler would read the system's certificate authorities here, also for a request to an HTTP URL.
        urllib.request.AbstractHTTPHandler.__init__(self)
        self._pace, self._trust, self._guarded = pace, trust, guarded

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        connect = _bound(http.client.HTTPSConnection, req, self._pace, guarded=self._guarded)
        return self.do_open(connect, req, context=self._trust or ssl.create_default_context())


def _bound(connection_class: Any, request: urllib.request.Request, pace: MinimumSpeed, *, guarded: bool) -> Any:  # noqa: ANN401
    """Return a connection factory for a request. A proxy may have any address, because the user configured it."""
    proxied = request.has_proxy() or bool(getattr(request, "_tunnel_host", None))

    def connection(*args: Any, **kwargs: Any) -> http.client.HTTPConnection:  # noqa: ANN401
        new: http.client.HTTPConnection = connection_class(*args, **kwargs)
        apply_limits(new, pace, guarded=guarded and not proxied)
        return new

    return connection
