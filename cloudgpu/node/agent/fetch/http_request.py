"""Send one HTTP request with limits on time and size. A redirect is returned as a response and never followed.

By default, urllib follows redirects and sends all request headers again, including logins and role credentials.
"""

from __future__ import annotations

import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Mapping

from .http_limits import LocalAddressError, MinimumSpeed, apply_limits, check_address, is_local

REDIRECTS = (301, 302, 303, 307, 308)


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
