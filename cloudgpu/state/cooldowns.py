"""Remember which candidates recently had no capacity, so that the next command tries them last.

The file is only a hint: a file that cannot be read is treated as empty, and write errors are ignored.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from cloudgpu.clock import Clock
from cloudgpu.decoding import decode_as
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Candidate, Market
from cloudgpu.state.documents import StateFile
from cloudgpu.state.identifiers import BackendIdentity

COOL_DOWN: Final = timedelta(minutes=10)
"""Time after a capacity failure during which commands try the same candidate last."""
Place = tuple[str, str, Market]
"""Instance type, zone and market of a candidate."""


@dataclass(frozen=True)
class _Entry:
    """A capacity failure. The account is included because zone names differ between accounts."""

    account: str
    endpoint: str
    instance_type: str
    zone: str
    market: Market
    at: datetime

    @property
    def place(self) -> Place:
        return self.instance_type, self.zone, self.market


@dataclass(frozen=True)
class _Content:
    """The content of the file. Each row is decoded separately, so that a damaged row does not affect the others."""

    refused: tuple[Any, ...]


COOLDOWNS: Final = StateFile("list of capacity failures", _Content)


class Cooldowns:
    """The recent capacity failures recorded in one state home."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._path = home.cooldowns
        self._clock = clock

    def recent(self, backend: BackendIdentity) -> Mapping[Place, int]:
        """Return the seconds since each recent capacity failure in this account, by instance type, zone and market."""
        entries = self._entries()
        if not entries:
            return {}  # avoid a needless account lookup
        identity = (backend.account(), backend.endpoint)
        now = self._clock.now()
        return {
            entry.place: int((now - entry.at).total_seconds())
            for entry in entries
            if (entry.account, entry.endpoint) == identity
        }

    def note(self, backend: BackendIdentity, candidate: Candidate) -> None:
        """Record that a candidate had no capacity."""
        entry = _entry(backend, candidate, self._clock.now())
        self._write([*self._without(entry), entry])

    def forget(self, backend: BackendIdentity, candidate: Candidate) -> None:
        """Remove the entry of a candidate that has capacity again."""
        entry = _entry(backend, candidate, self._clock.now())
        others = self._without(entry)
        if len(others) < len(self._entries()):
            self._write(others)

    def _without(self, entry: _Entry) -> list[_Entry]:
        same = (entry.account, entry.endpoint, entry.place)
        return [other for other in self._entries() if (other.account, other.endpoint, other.place) != same]

    def _entries(self) -> list[_Entry]:
        try:
            entries = list(_readable(COOLDOWNS.read(self._path).refused))
        except (OSError, ValueError, NewerFormatError):
            return []
        now = self._clock.now()
        # A clock that was set back must not make a cool-down last forever.
        return [entry for entry in entries if timedelta(0) <= now - entry.at < COOL_DOWN]

    def _write(self, entries: list[_Entry]) -> None:
        with contextlib.suppress(StateError):
            COOLDOWNS.write(self._path, _Content(tuple(asdict(entry) for entry in entries)))


def _entry(backend: BackendIdentity, candidate: Candidate, at: datetime) -> _Entry:
    return _Entry(backend.account(), backend.endpoint, candidate.instance_type, candidate.zone, candidate.market, at)


def _readable(rows: Iterable[object]) -> Iterator[_Entry]:
    """Yield the readable entries. Damaged entries are skipped, because the file is only a hint."""
    for row in rows:
        with contextlib.suppress(ValueError):
            yield decode_as(_Entry, row)
