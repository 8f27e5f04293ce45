"""One HTTP request and its answer, as plain values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl


class Headers(dict[str, str]):
    """Header fields, looked up without regard to case; the spelling that arrived is kept."""

    def __init__(self, items: Mapping[str, str] | None = None) -> None:
        super().__init__(items or {})
        self._spelling = {name.lower(): name for name in self}

    def find(self, name: str, default: str = "") -> str:
        """The value of a field, whatever its case."""
        return self.get(self._spelling.get(name.lower(), name), default)

    def without(self, *names: str) -> "Headers":
        """A copy that lacks these fields."""
        dropped = {name.lower() for name in names}
        return Headers({name: value for name, value in self.items() if name.lower() not in dropped})

    def with_fields(self, fields: Mapping[str, str]) -> "Headers":
        """A copy with these fields set."""
        return Headers({**self.without(*fields), **fields})


@dataclass(frozen=True)
class HttpRequest:
    """A request whose body has been read. `target` is the path and query exactly as they arrived."""

    method: str
    target: str
    headers: Headers
    body: bytes = b""

    @property
    def raw_path(self) -> str:
        """The path, still percent-encoded."""
        return self.target.partition("?")[0] or "/"

    @property
    def raw_query(self) -> str:
        """The query, still percent-encoded."""
        return self.target.partition("?")[2]

    def query(self) -> dict[str, str]:
        """Decoded query parameters; the last one wins."""
        return dict(parse_qsl(self.raw_query, keep_blank_values=True))


@dataclass
class HttpResponse:
    """An answer."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class DropConnectionError(Exception):
    """Close the connection without an answer."""


Application = Callable[[HttpRequest], HttpResponse]
"""Answers a request."""

LargeBodyGuard = Callable[[HttpRequest], HttpResponse | None]
"""Looks at a request without its body, which is large; returns the refusal, or None to have the body read."""
