"""HTTP downloads of files and ranges over persistent connections. URLs are never shown."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import urllib.parse
import urllib.request
from typing import Iterator

from ..errors import AgentError
from .from_peer import Peer
from .http_limits import LocalAddressError, Pace, bind, check_address, is_local, must_guard, redirected
from .request import RequestedFile

_SILENCE_S = 60.0
_PACE = Pace(head_s=_SILENCE_S)
_MOST_MOVES = 5
_CHUNK = 1 << 20
_SHOWN = 1000
_MOST_READ_ON = 1 << 16
"""Unneeded response bytes that are drained to reuse a connection; beyond that a new connection is cheaper."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_EXPIRED = re.compile(rb"Request has expired|<Code>(ExpiredToken|RequestTimeTooSkewed|InvalidAccessKeyId)</Code>")


class TransientError(Exception):
    """A failure that a retry may fix."""


class WrongRangeError(TransientError):
    """The server sent a different range than requested, so the whole file must be requested."""


class HttpConnections:
    """Persistent connections, separate for each thread."""

    def __init__(self, hand: Peer | None = None) -> None:
        """Create a client. With a peer, it contacts only that node, without a proxy."""
        self._own = threading.local()
        self._made: list[http.client.HTTPConnection] = []
        self._proxies = {} if hand else urllib.request.getproxies()
        self._context = hand.context if hand else ssl.create_default_context()
        self._more = hand.headers if hand else {}

    def get(self, wanted: RequestedFile, first: int, last: int | None) -> http.client.HTTPResponse:
        """Request the bytes `first` to `last`. Return a response with status 200 or 206 and an unread body.

        Raises:
            WrongRangeError: The server sends another range. Retry with the whole file.
            TransientError: A retry may succeed.
            AgentError: A retry is useless. Code `expired` means that a new URL is needed.
        """
        headers = {"User-Agent": "cloudgpu", "Accept-Encoding": "identity", **self._more}
        if first or last is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        if wanted.etag:
            headers["If-Match"] = f'"{wanted.etag}"'
        answer = self._followed(wanted.url, headers)
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise _refused(wanted, answer)
        if answer.status == http.client.PARTIAL_CONTENT:
            self._check_range(wanted, answer, first, last)
        now = (answer.getheader("ETag") or "").strip('"')
        if wanted.etag and now and now != wanted.etag:
            self.drop()
            raise changed(wanted)
        return answer

    def body(self, answer: http.client.HTTPResponse) -> Iterator[memoryview]:
        """Yield the body in chunks. The next chunk overwrites the previous one.

        Raises:
            TransientError: The connection broke.
        """
        buffer = memoryview(bytearray(_CHUNK))
        while True:
            try:
                count = answer.readinto(buffer)
            except (OSError, http.client.HTTPException) as error:
                self.drop()
                raise TransientError(f"the connection broke: {reason(error)}") from None
            if not count:
                return
            yield buffer[:count]

    def drop(self) -> None:
        """Close this thread's connections, which still hold part of a response."""
        for connection in getattr(self._own, "open", {}).values():
            connection.close()
        self._own.open = {}

    def close(self) -> None:
        """Close the connections of all threads. Call after the threads have ended."""
        for connection in self._made:
            connection.close()
        self._made.clear()

    def _check_range(
        self, wanted: RequestedFile, answer: http.client.HTTPResponse, first: int, last: int | None
    ) -> None:
        """Compare the received range with the requested one; without a checksum nothing else would notice.

        Raises:
            WrongRangeError: The range is different.
            AgentError: The file has another size.
        """
        found = _RANGE.fullmatch(answer.getheader("Content-Range") or "")
        end = wanted.size - 1 if last is None else last
        if found and found[3] not in ("*", str(wanted.size)):
            self.drop()
            raise changed(wanted)
        if found is None or int(found[1]) != first or int(found[2]) > end:
            self.drop()
            raise WrongRangeError("the server sent a different range than requested")

    def _followed(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            return self._moved(url, headers)
        except ValueError:
            raise AgentError("fetch: the server redirects to an invalid URL", code="refused") from None

    def _moved(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        start = url
        for _ in range(_MOST_MOVES):
            answer = self._asked(url, headers, guarded=must_guard(start, url))
            to = answer.getheader("Location") if answer.status in _MOVED else None
            if not to or self._more:  # the token is only for the peer
                return answer
            self._read_on(answer)
            try:
                url = redirected(url, to)
            except ValueError:
                raise _led_astray() from None
        raise AgentError("fetch: too many redirects", code="refused")

    def _read_on(self, answer: http.client.HTTPResponse) -> None:
        """Drain the response to reuse the connection, or close it if that takes too long."""
        try:
            if answer.length is not None and answer.length <= _MOST_READ_ON:
                answer.read()
        except (OSError, http.client.HTTPException):
            self.drop()
        if not answer.isclosed():
            self.drop()

    def _asked(self, url: str, headers: dict[str, str], *, guarded: bool) -> http.client.HTTPResponse:
        try:
            check_address(url)
            parts = urllib.parse.urlsplit(url)
            return self._answered(url, parts, headers, guarded=guarded)
        except LocalAddressError:
            raise _led_astray() from None
        except (OSError, http.client.HTTPException) as error:  # first: a wrong certificate is a ValueError too
            self.drop()
            raise TransientError(f"cannot reach the server: {reason(error)}") from None
        except ValueError:
            raise _led_astray() from None

    def _answered(
        self, url: str, parts: urllib.parse.SplitResult, headers: dict[str, str], *, guarded: bool
    ) -> http.client.HTTPResponse:
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection, whole = self._connection(parts, guarded=guarded)
        fresh = connection.sock is None
        try:
            connection.request("GET", url if whole else target, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            self.drop()
            if fresh:
                raise
        # The server closed an idle connection: retry once with a new one.
        connection, whole = self._connection(parts, guarded=guarded)
        connection.request("GET", url if whole else target, headers=headers)
        return connection.getresponse()

    def _connection(self, parts: urllib.parse.SplitResult, *, guarded: bool) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it goes to a proxy that needs absolute URLs."""
        if not hasattr(self._own, "open"):
            self._own.open = {}
        host = parts.hostname or ""
        key = (parts.scheme, parts.netloc, guarded)
        proxy = "" if not self._proxies or urllib.request.proxy_bypass(host) else self._proxies.get(parts.scheme, "")
        if key not in self._own.open:
            if guarded and is_local(host):
                raise LocalAddressError
            made = self._new(parts, proxy)
            # Behind a proxy, only a literal IP address can be checked.
            bind(made, _PACE, guarded=guarded and not proxy)
            self._own.open[key] = made
            self._made.append(made)
        return self._own.open[key], bool(proxy) and parts.scheme == "http"

    def _new(self, parts: urllib.parse.SplitResult, proxy: str) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port
        if not proxy:
            if parts.scheme == "https":
                return http.client.HTTPSConnection(host, port, timeout=_SILENCE_S, context=self._context)
            return http.client.HTTPConnection(host, port, timeout=_SILENCE_S)
        way = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.scheme == "http":
            return http.client.HTTPConnection(way.hostname or "", way.port, timeout=_SILENCE_S)
        tunnel = http.client.HTTPSConnection(way.hostname or "", way.port, timeout=_SILENCE_S, context=self._context)
        tunnel.set_tunnel(host, port)
        return tunnel


def _led_astray() -> AgentError:
    return AgentError("fetch: the server redirects to a forbidden or invalid address", code="refused")


def changed(wanted: RequestedFile) -> AgentError:
    """Return the error for an object that has changed since it was listed."""
    hint = "run the command again, and do not write to a dataset while it is copied"
    return AgentError(f"{wanted.path}: changed at the source during the copy", hint=hint, code="changed")


def reason(error: Exception) -> str:
    """Describe an error without the URL that some messages contain."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _refused(wanted: RequestedFile, answer: http.client.HTTPResponse) -> Exception:
    # Not the server's reason phrase: it is untrusted.
    status = f"the server returned {answer.status} {http.client.responses.get(answer.status, '')}".strip()
    try:
        text = answer.read(_SHOWN)
    except (OSError, http.client.HTTPException):
        text = b""
    if answer.status == http.client.PRECONDITION_FAILED:
        return changed(wanted)
    if answer.status in _PASSING:
        return TransientError(status)
    if answer.status in (http.client.BAD_REQUEST, http.client.FORBIDDEN) and _EXPIRED.search(text):
        message = f"{wanted.path}: {status}: the presigned URL has expired"
        return AgentError(message, hint="run the command again", code="expired")
    denied = answer.status in (http.client.FORBIDDEN, http.client.UNAUTHORIZED)
    hint = "check that your credentials can read this object" if denied else ""
    return AgentError(f"{wanted.path}: {status}", hint=hint, code="refused")
