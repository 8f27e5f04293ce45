"""HTTP downloads of files and ranges over persistent connections. Error messages never contain URLs."""

from __future__ import annotations

import http.client
import re
import ssl
import threading
import urllib.parse
import urllib.request
from typing import Iterator

from ..untrusted_data import AgentError
from .bounded_http import (
    LocalAddressError,
    MinimumSpeed,
    apply_limits,
    check_address,
    is_local,
    must_block_local,
    redirect_url,
)
from .request import Peer, RequestedFile

_READ_TIMEOUT_S = 60.0
_PACE = MinimumSpeed(head_s=_READ_TIMEOUT_S)
_MAX_REDIRECTS = 5
_CHUNK = 1 << 20
_SHOWN = 1000
_MAX_DRAINED = 1 << 16
"""Maximum bytes to discard so that a connection can be reused. For more bytes, a new connection is cheaper."""
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_CODE = re.compile(rb"<Code>([A-Za-z]{1,60})</Code>")
"""Code of an S3 error. It names the reason of a 403 status, which may have nothing to do with permissions."""
_ARCHIVED = "InvalidObjectState"
_EXPIRED = re.compile(rb"Request has expired|<Code>(ExpiredToken|RequestTimeTooSkewed|InvalidAccessKeyId)</Code>")


class TransientError(Exception):
    """A failure that a retry may fix."""


class WrongRangeError(TransientError):
    """The server sent a different range than the client requested. Request the whole file instead."""


class HttpConnections:
    """Persistent connections to servers. Each thread has its own connections."""

    def __init__(self, peer: Peer | None = None) -> None:
        """Prepare for connections to any server or, if `peer` is given, to that node without a proxy."""
        self._per_thread = threading.local()
        self._made: list[http.client.HTTPConnection] = []
        self._proxies = {} if peer else urllib.request.getproxies()
        self._context = peer.context if peer else ssl.create_default_context()
        self._peer_headers = peer.headers if peer else {}

    def get(self, wanted: RequestedFile, first: int, last: int | None) -> http.client.HTTPResponse:
        """Request the bytes `first` to `last`, and return the response with its body unread.

        The status is 200 (the whole file) or 206 (the range). `last` is inclusive, and None means the end of the file.
        """
        headers = {"User-Agent": "cloudgpu", "Accept-Encoding": "identity", **self._peer_headers}
        if first or last is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        if wanted.etag:
            headers["If-Match"] = f'"{wanted.etag}"'
        answer = self._followed(wanted.url, headers)
        if answer.status not in (http.client.OK, http.client.PARTIAL_CONTENT):
            raise _status_error(wanted, answer)
        if answer.status == http.client.PARTIAL_CONTENT:
            self._check_range(wanted, answer, first, last)
        current_etag = (answer.getheader("ETag") or "").strip('"')
        if wanted.etag and current_etag and current_etag != wanted.etag:
            self.drop()
            raise changed_object_error(wanted)
        return answer

    def body(self, answer: http.client.HTTPResponse) -> Iterator[memoryview]:
        """Yield the body in chunks. All chunks share a buffer, so each chunk overwrites the previous one."""
        buffer = memoryview(bytearray(_CHUNK))
        while True:
            try:
                count = answer.readinto(buffer)
            except (OSError, http.client.HTTPException) as error:
                self.drop()
                raise TransientError(f"the connection was lost: {describe_error(error)}") from None
            if not count:
                return
            yield buffer[:count]

    def drop(self) -> None:
        """Close this thread's connections, which may still contain part of a response."""
        for connection in getattr(self._per_thread, "open", {}).values():
            connection.close()
        self._per_thread.open = {}

    def close(self) -> None:
        """Close the connections of all threads. Call after the threads have finished."""
        for connection in self._made:
            connection.close()
        self._made.clear()

    def _check_range(
        self, wanted: RequestedFile, answer: http.client.HTTPResponse, first: int, last: int | None
    ) -> None:
        """Check the range that the server sent.

        For a file without a checksum, this is the only check of the content.
        """
        match = _RANGE.fullmatch(answer.getheader("Content-Range") or "")
        end = wanted.size - 1 if last is None else last
        if match and match[3] not in ("*", str(wanted.size)):
            self.drop()
            raise changed_object_error(wanted)
        if match is None or int(match[1]) != first or int(match[2]) > end:
            self.drop()
            raise WrongRangeError("the server sent a different range than requested")

    def _followed(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            return self._moved(url, headers)
        except ValueError:
            raise AgentError("fetch: the server redirects to an invalid URL", code="refused") from None

    def _moved(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        start = url
        for _ in range(_MAX_REDIRECTS):
            answer = self._asked(url, headers, guarded=must_block_local(start, url))
            to = answer.getheader("Location") if answer.status in _REDIRECTS else None
            if not to or self._peer_headers:  # a peer's token must not be sent to another server
                return answer
            self._drain(answer)
            try:
                url = redirect_url(url, to)
            except ValueError:
                raise _bad_redirect() from None
        raise AgentError("fetch: too many redirects", code="refused")

    def _drain(self, answer: http.client.HTTPResponse) -> None:
        """Discard the rest of a response, so that its connection can be reused, or close the connection if cheaper."""
        try:
            if answer.length is not None and answer.length <= _MAX_DRAINED:
                answer.read()
        except (OSError, http.client.HTTPException):
            self.drop()
        if not answer.isclosed():
            self.drop()

    def _asked(self, url: str, headers: dict[str, str], *, guarded: bool) -> http.client.HTTPResponse:
        try:
            check_address(url)
            parts = urllib.parse.urlsplit(url)
            return self._exchange(url, parts, headers, guarded=guarded)
        except LocalAddressError:
            raise _bad_redirect() from None
        except (
            OSError,
            http.client.HTTPException,
        ) as error:  # comes first, because a certificate error is also a ValueError
            self.drop()
            raise TransientError(f"cannot reach the server: {describe_error(error)}") from None
        except ValueError:
            raise _bad_redirect() from None

    def _exchange(
        self, url: str, parts: urllib.parse.SplitResult, headers: dict[str, str], *, guarded: bool
    ) -> http.client.HTTPResponse:
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        connection, absolute = self._connection(parts, guarded=guarded)
        is_new = connection.sock is None
        try:
            connection.request("GET", url if absolute else target, headers=headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            self.drop()
            if is_new:
                raise
        # The server may have closed the idle connection, so retry once with a new connection.
        connection, absolute = self._connection(parts, guarded=guarded)
        connection.request("GET", url if absolute else target, headers=headers)
        return connection.getresponse()

    def _connection(self, parts: urllib.parse.SplitResult, *, guarded: bool) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and True if requests on it must contain absolute URLs, as for an HTTP proxy."""
        if not hasattr(self._per_thread, "open"):
            self._per_thread.open = {}
        host = parts.hostname or ""
        key = (parts.scheme, parts.netloc, guarded)
        proxy = "" if not self._proxies or urllib.request.proxy_bypass(host) else self._proxies.get(parts.scheme, "")
        if key not in self._per_thread.open:
            if guarded and is_local(host):
                raise LocalAddressError
            new = self._new(parts, proxy)
            # Behind a proxy, only a literal IP address can be checked.
            apply_limits(new, _PACE, guarded=guarded and not proxy)
            self._per_thread.open[key] = new
            self._made.append(new)
        return self._per_thread.open[key], bool(proxy) and parts.scheme == "http"

    def _new(self, parts: urllib.parse.SplitResult, proxy: str) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port
        if not proxy:
            if parts.scheme == "https":
                return http.client.HTTPSConnection(host, port, timeout=_READ_TIMEOUT_S, context=self._context)
            return http.client.HTTPConnection(host, port, timeout=_READ_TIMEOUT_S)
        proxy_parts = urllib.parse.urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.scheme == "http":
            return http.client.HTTPConnection(proxy_parts.hostname or "", proxy_parts.port, timeout=_READ_TIMEOUT_S)
        tunnel = http.client.HTTPSConnection(
            proxy_parts.hostname or "", proxy_parts.port, timeout=_READ_TIMEOUT_S, context=self._context
        )
        tunnel.set_tunnel(host, port)
        return tunnel


def _bad_redirect() -> AgentError:
    return AgentError("fetch: the server redirects to a forbidden or invalid address", code="refused")


def changed_object_error(wanted: RequestedFile) -> AgentError:
    """Return the error for an object that has changed since it was listed."""
    hint = "run the command again, and do not write to a dataset while it is being copied"
    return AgentError(f"{wanted.path}: changed at the source during the copy", hint=hint, code="changed")


def describe_error(error: Exception) -> str:
    """Describe an error without the URL that some messages contain."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _status_error(wanted: RequestedFile, answer: http.client.HTTPResponse) -> Exception:
    # Do not show the server's own reason phrase, because it is untrusted.
    status = f"the server returned {answer.status} {http.client.responses.get(answer.status, '')}".strip()
    try:
        text = answer.read(_SHOWN)
    except (OSError, http.client.HTTPException):
        text = b""
    if answer.status == http.client.PRECONDITION_FAILED:
        return changed_object_error(wanted)
    if answer.status in _TRANSIENT:
        return TransientError(status)
    if answer.status in (http.client.BAD_REQUEST, http.client.FORBIDDEN) and _EXPIRED.search(text):
        message = f"{wanted.path}: {status}: the presigned URL has expired"
        return AgentError(message, hint="run the command again", code="expired")
    code = _CODE.search(text)
    reason = code.group(1).decode() if code else ""
    return AgentError(
        f"{wanted.path}: {status}{f' ({reason})' if reason else ''}",
        hint=_refusal_hint(answer.status, reason),
        code="refused",
    )


def _refusal_hint(status: int, reason: str) -> str:
    if reason == _ARCHIVED:
        return "the object is archived: restore it with `aws s3api restore-object`, then run the command again"
    denied = status in (http.client.FORBIDDEN, http.client.UNAUTHORIZED)
    return "check that your credentials can read this object" if denied else ""
