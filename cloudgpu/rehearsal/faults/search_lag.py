"""Delayed tag search: as on AWS, a tag search does not find a new resource immediately."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl

from cloudgpu.clock import Clock
from cloudgpu.rehearsal.aws_api.ec2 import instance_store


class SearchLag:
    """A record of when each resource was first tagged. Callers must hold the simulated cloud's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}

    def note(self) -> None:
        """Record which resources have tags now. Call this after every API call that may have tagged a resource."""
        now = self._clock.monotonic()
        tagged = [(str(backend.region_name), name) for backend in instance_store.backends() for name in backend.tags]
        self._since = {key: self._since.get(key, now) for key in tagged}

    @contextmanager
    def hide_recent_tags(self, body: bytes, lag_s: float) -> Iterator[None]:
        """If the request is a tag search, hide the tags of resources first tagged less than `lag_s` seconds ago.

        The tags are restored when the context exits.
        """
        hidden = self._hide(lag_s) if lag_s > 0 and _searches_by_tag(body) else []
        try:
            yield
        finally:
            for backend, name, tags in hidden:
                backend.tags[name] = tags

    def _hide(self, lag_s: float) -> list[tuple[Any, str, Any]]:
        before = self._clock.monotonic() - lag_s
        young = {key for key, since in self._since.items() if since > before}
        return [
            (backend, name, backend.tags.pop(name))
            for backend in instance_store.backends()
            for name in list(backend.tags)
            if (str(backend.region_name), name) in young
        ]


def _searches_by_tag(body: bytes) -> bool:
    fields = parse_qsl(body.decode(errors="replace"))
    names = (value for name, value in fields if name.startswith("Filter.") and name.endswith(".Name"))
    return any(name == "tag-key" or name.startswith("tag:") for name in names)
