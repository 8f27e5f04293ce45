"""The files and the peer that a request names, and their download by HTTP over persistent connections.

Requests are validated before use. Error messages never contain URLs.
"""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Iterator

from ..untrusted_data import LARGEST, AgentError
from .bounded_http import (
    LocalAddressError,
    MinimumSpeed,
    apply_limits,
    check_address,
    is_local,
    must_block_local,
    redirect_url,
)

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


@dataclass(frozen=True)
class RequestedFile:
    """A file to download. Its URL is secret, because it may contain a signature.

    Attributes:
        etag: The source's identifier of the content; empty if the source has none.
        mtime_ns: Modification time to set, which also distinguishes versions of the same size; None to set none.
        mode: Permissions to set; None for the default.
    """

    url: str
    path: str
    size: int
    sha256: str | None
    etag: str = ""
    mtime_ns: int | None = None
    mode: int | None = None

    def __repr__(self) -> str:
        return f"RequestedFile(path={self.path!r}, size={self.size})"

    @property
    def mark(self) -> str:
        """Identifier that distinguishes this content from other content of the same size; empty if unknown."""
        if self.mtime_ns is not None:
            return f"time {self.mtime_ns}"
        return self.sha256 or (f"etag {self.etag}" if self.etag else "")


def parse_requested_files(spec: dict[str, Any]) -> list[RequestedFile]:
    """Parse the files of a request."""
    entries, roots = spec.get("files"), _roots(spec.get("roots") or [])
    if not isinstance(entries, list):
        raise AgentError("fetch: files must be a list")
    files = [_requested_file(row) for row in entries]
    _check_paths(files)
    for file in files:
        if roots and not any(_below(file.path, root) for root in roots):
            raise AgentError(f"fetch: {file.path} is outside the data directories", code="outside")
    return files


def _roots(roots: Any) -> list[str]:  # noqa: ANN401 - unchecked input
    if not isinstance(roots, list):
        raise AgentError("fetch: roots must be a list")
    if not all(isinstance(root, str) and "\0" not in root for root in roots):
        raise AgentError("fetch: every root must be a path")
    return roots


def _check_paths(files: list[RequestedFile]) -> None:
    """Reject files that would overwrite each other or each other's partial files."""
    paths = {file.path for file in files}
    if len(paths) != len(files):
        raise AgentError("fetch: two files have the same path")
    for file in files:
        for temporary in (f"{file.path}.part", f"{file.path}.part.map"):
            if temporary in paths:
                raise AgentError(
                    f"fetch: the partial file of {file.path} would overwrite {temporary}, which is requested too",
                    code="outside",
                )


def _requested_file(entry: Any) -> RequestedFile:  # noqa: ANN401 - unchecked input
    if not isinstance(entry, dict):
        raise AgentError("fetch: every file must be an object")
    url, path, size, sha256 = entry.get("url"), entry.get("path"), entry.get("size"), entry.get("sha256")
    if not isinstance(path, str) or not os.path.isabs(path) or os.path.normpath(path) != path or "\0" in path:
        raise AgentError(f"fetch: {path!r} is not a normalized absolute path", code="outside")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise AgentError(f"fetch: the URL of {path} is not http or https")
    if not isinstance(size, int) or not _is_whole(size) or size < 0 or not (sha256 is None or isinstance(sha256, str)):
        raise AgentError(f"fetch: size or sha256 of {path} is invalid")
    mtime_ns, mode = entry.get("mtime_ns"), entry.get("mode")
    if not all(value is None or _is_whole(value) for value in (mtime_ns, mode)):
        raise AgentError(f"fetch: time or mode of {path} is invalid")
    digest = None if sha256 is None else sha256.lower()
    return RequestedFile(url, path, size, digest, str(entry.get("etag") or ""), mtime_ns, mode)


def _is_whole(value: Any) -> bool:  # noqa: ANN401 - unchecked input
    """Return True if the value is a valid file size, time or mode."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def _below(path: str, root: str) -> bool:
    """Return True if the path stays below the directory after symlinks are resolved."""
    real = os.path.realpath(root)
    return os.path.realpath(os.path.dirname(path) + "/x").startswith(real.rstrip("/") + "/")


@dataclass(frozen=True)
class Peer:
    """Another node, which serves the data. The token is a secret.

    Attributes:
        url: URL of the server, such as `https://10.0.0.5:41234`.
    """

    url: str
    token: str
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return f"Peer({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        """The authorization header."""
        return {"Authorization": f"Bearer {self.token}"}


def parse_peer(spec: dict[str, Any]) -> Peer | None:
    """Return the peer in a request, or None if there is none."""
    peer = spec.get("hand")
    if not peer:
        return None
    try:
        # The certificate does not contain the node's address, so trust only this certificate and check no host name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=str(peer["cert"]))
        return Peer(str(peer["url"]), str(peer["token"]), context)
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise AgentError("hand: the other node's URL, token or certificate is invalid") from error


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
