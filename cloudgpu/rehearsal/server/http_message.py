"""HTTP requests and responses as plain values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl


class Headers(dict[str, str]):
    """HTTP headers that keep their original spelling and support case-insensitive lookup."""

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        super().__init__(items or {})
        self._spelling = {name.lower(): name for name in self}

    def find(self, name: str, default: str = "") -> str:
        """Return the value of a header, ignoring case."""
        return self.get(self._spelling.get(name.lower(), name), default)

    def without(self, *names: str) -> "Headers":
        """Return a copy without these headers."""
        dropped = {name.lower() for name in names}
        return Headers({name: value for name, value in self.items() if name.lower() not in dropped})

    def with_fields(self, fields: Mapping[str, str]) -> "Headers":
        """Return a copy with these headers set."""
        return Headers({**self.without(*fields), **fields})


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request with its complete body. `target` is the path and query exactly as received."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @property
    def raw_path(self) -> str:
        """Percent-encoded path."""
        return self.target.partition("?")[0] or "/"

    @property
    def raw_query(self) -> str:
        """Percent-encoded query string."""
        return self.target.partition("?")[2]

    def query(self) -> dict[str, str]:
        """Return the decoded query parameters; if a name is repeated, the last value is used."""
        return dict(parse_qsl(self.raw_query, keep_blank_values=True))


@dataclass
class HttpResponse:
    """An HTTP response."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class DropConnectionError(Exception):
    """Raised to close the connection without sending a response."""


Application = Callable[[HttpRequest], HttpResponse]
"""Function that returns the response to a request."""

LargeBodyGuard = Callable[[HttpRequest], HttpResponse | None]
"""Function that inspects a large request before its body is read; returns an error, or None to read the body."""
