"""Asking for a file, or a range of it, over connections that are kept open. Addresses are never shown."""

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
"""Of an answer that nobody needs: beyond that, a new connection is cheaper than the old one."""
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_MOVED = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_EXPIRED = re.compile(rb"Request has expired|<Code>(ExpiredToken|RequestTimeTooSkewed|InvalidAccessKeyId)</Code>")


class TransientError(Exception):
    """It may work the next time."""


class WrongRangeError(TransientError):
    """The server sent another range than it was asked for: it has to be asked for the whole."""


class HttpConnections:
    """Connections of one thread each, kept open from one file to the next."""

    def __init__(self, hand: Peer | None = None) -> None:
        """With a node that hands over, nobody else is asked, and no proxy stands between."""
        self._own = threading.local()
        self._made: list[http.client.HTTPConnection] = []
        self._proxies = {} if hand else urllib.request.getproxies()
        self._context = hand.context if hand else ssl.create_default_context()
        self._more = hand.headers if hand else {}

    def get(self, wanted: RequestedFile, first: int, last: int | None) -> http.client.HTTPResponse:
        """The answer to a request for the bytes `first` to `last`; status 200 or 206, nothing read yet.

        Raises:
            WrongRange: It sends something else. Try again with the whole.
            Passing: Try again.
            AgentError: Trying again is useless. Code `expired`: with another address it would not be.
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
        """What comes, in pieces; each is overwritten by the next one.

        Raises:
            Passing: The connection broke.
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
        """Close this thread's connections: something of an answer is left in them."""
        for connection in getattr(self._own, "open", {}).values():
            connection.close()
        self._own.open = {}

    def close(self) -> None:
        """Close the connections of all threads, which have ended by now."""
        for connection in self._made:
            connection.close()
        self._made.clear()

    def _check_range(
        self, wanted: RequestedFile, answer: http.client.HTTPResponse, first: int, last: int | None
    ) -> None:
        """Compare what is sent with what was asked for: without a checksum nothing else would notice.

        Raises:
            WrongRange: It is another range.
            AgentError: It is a range of a file of another size.
        """
        found = _RANGE.fullmatch(answer.getheader("Content-Range") or "")
        end = wanted.size - 1 if last is None else last
        if found and found[3] not in ("*", str(wanted.size)):
            self.drop()
            raise changed(wanted)
        if found is None or int(found[1]) != first or int(found[2]) > end:
            self.drop()
            raise WrongRangeError("the server sent another range than it was asked for")

    def _followed(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            return self._moved(url, headers)
        except ValueError:
            raise AgentError("fetch: the server sends to an address that is none", code="refused") from None

    def _moved(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        start = url
        for _ in range(_MOST_MOVES):
            answer = self._asked(url, headers, guarded=must_guard(start, url))
            to = answer.getheader("Location") if answer.status in _MOVED else None
            if not to or self._more:  # the token is for the node that hands over, and for nobody else
                return answer
            self._read_on(answer)
            try:
                url = redirected(url, to)
            except ValueError:
                raise _led_astray() from None
        raise AgentError("fetch: the server sends from one address to the next", code="refused")

    def _read_on(self, answer: http.client.HTTPResponse) -> None:
        """Make the connection ready for the next request, or close it where that takes too long."""
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
        # The server has closed a connection that was idle: once more, over a new one.
        connection, whole = self._connection(parts, guarded=guarded)
        connection.request("GET", url if whole else target, headers=headers)
        return connection.getresponse()

    def _connection(self, parts: urllib.parse.SplitResult, *, guarded: bool) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it is to a proxy that wants whole addresses."""
        if not hasattr(self._own, "open"):
            self._own.open = {}
        host = parts.hostname or ""
        key = (parts.scheme, parts.netloc, guarded)
        proxy = "" if not self._proxies or urllib.request.proxy_bypass(host) else self._proxies.get(parts.scheme, "")
        if key not in self._own.open:
            if guarded and is_local(host):
                raise LocalAddressError
            made = self._new(parts, proxy)
            # Behind a proxy, only an address that is written out can be checked.
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
    return AgentError("fetch: the server leads to an address that cannot be used", code="refused")


def changed(wanted: RequestedFile) -> AgentError:
    """It is not the object any more that was listed."""
    hint = "run the command again: it is listed anew; nobody may write to a dataset while it is copied"
    return AgentError(f"{wanted.path}: it was changed at the source during the copy", hint=hint, code="changed")


def reason(error: Exception) -> str:
    """What went wrong, without the address that some messages repeat."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _refused(wanted: RequestedFile, answer: http.client.HTTPResponse) -> Exception:
    # Not the server's own words for it: they may hold anything.
    said = f"the server answered {answer.status} {http.client.responses.get(answer.status, '')}".strip()
    try:
        text = answer.read(_SHOWN)
    except (OSError, http.client.HTTPException):
        text = b""
    if answer.status == http.client.PRECONDITION_FAILED:
        return changed(wanted)
    if answer.status in _PASSING:
        return TransientError(said)
    if answer.status in (http.client.BAD_REQUEST, http.client.FORBIDDEN) and _EXPIRED.search(text):
        message = f"{wanted.path}: {said}: its address has expired"
        return AgentError(message, hint="run the command again", code="expired")
    denied = answer.status in (http.client.FORBIDDEN, http.client.UNAUTHORIZED)
    hint = "may the caller's credentials read this object?" if denied else ""
    return AgentError(f"{wanted.path}: {said}", hint=hint, code="refused")
