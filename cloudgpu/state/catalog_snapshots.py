"""Catalog snapshots for one state home and target, and the catalog that the active snapshot results in.

There is one file per refresh, and an index that selects the active one. A refresh keeps the snapshot that was active
before it, to which `catalog revert` returns, and deletes all others.

A killed refresh leaves the index, and therefore the active snapshot, unchanged. A lock serializes concurrent
refreshes.
"""

import contextlib
import fcntl
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from cloudgpu import bounds, files
from cloudgpu.catalog import Catalog, load
from cloudgpu.catalog.snapshot import CatalogSnapshot, parse_snapshot, to_document
from cloudgpu.catalog.snapshot_changes import apply_snapshot
from cloudgpu.decoding import decode_as
from cloudgpu.errors import NewerFormatError, StateError, UsageError
from cloudgpu.paths import Home, unwritable_error
from cloudgpu.state.documents import StateFile
from cloudgpu.text import command

BUNDLED: Final = 0
"""Snapshot number of the bundled catalog."""
_SCHEMA: Final = 1
_NUMBERED: Final = re.compile(r"overlay-([0-9]{1,9})\.json")
SNAPSHOT: Final = StateFile("catalog snapshot", CatalogSnapshot, decode=parse_snapshot, encode=to_document)
DraftSnapshot = Callable[[CatalogSnapshot | None], tuple[CatalogSnapshot, str, Sequence[str]]]
"""Function that takes the active snapshot, or None, and returns the next snapshot, a summary and a list of changes."""


@dataclass(frozen=True)
class SnapshotEntry:
    """The history entry of a refresh. `after` is the number of the previously active snapshot; 0 if none was active."""

    number: int
    at: datetime
    account: str
    regions: tuple[str, ...]
    after: int
    summary: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """The refresh history: the number of the active snapshot, or 0 for none, and the stored refreshes, oldest first."""

    current: int = BUNDLED
    entries: tuple[SnapshotEntry, ...] = ()

    def entry(self, number: int) -> SnapshotEntry | None:
        """Return the refresh that created the snapshot with this number, or None if there is none."""
        return next((entry for entry in self.entries if entry.number == number), None)


@dataclass(frozen=True)
class AppliedRefresh:
    """The result of a refresh: the previous snapshot, the new snapshot and the history entry."""

    before: CatalogSnapshot | None
    snapshot: CatalogSnapshot
    entry: SnapshotEntry


def _decode_history(content: dict[str, Any]) -> History:
    if bounds.checked_count(content["schema"]) != _SCHEMA:
        message = f"it has schema {content['schema']!r}, but this version of cloudgpu reads schema {_SCHEMA}"
        raise ValueError(message)
    history = decode_as(History, content)
    if history.current != BUNDLED and history.entry(history.current) is None:
        message = f"it selects snapshot {history.current}, but does not list it"
        raise ValueError(message)
    return history


def _encode_history(history: History) -> dict[str, Any]:
    # Versions of cloudgpu that do not know `format` require `schema`.
    return {"schema": _SCHEMA, **asdict(history)}


INDEX: Final = StateFile("catalog index", History, decode=_decode_history, encode=_encode_history)
_T = TypeVar("_T", History, CatalogSnapshot)


class CatalogSnapshots:
    """The catalog snapshots for one target."""

    def __init__(self, home: Home, target: str) -> None:
        self._paths = home.catalog(target)
        self._target = target

    def current(self) -> CatalogSnapshot | None:
        """Return the active snapshot, or None if the bundled catalog is active."""
        number = self.history().current
        return None if number == BUNDLED else self._snapshot(number)

    def history(self) -> History:
        """Return the refreshes whose snapshots are stored, and the number of the active one."""
        return self._read(INDEX, self._paths.index) or History()

    def add(self, draft: DraftSnapshot, *, at: datetime, regions: Sequence[str]) -> AppliedRefresh:
        """Add a snapshot on top of the active one, which is kept, after waiting for concurrent refreshes."""
        with self._locked():
            history = self.history()
            before = self.current()
            snapshot, summary, lines = draft(before)
            number = self._next(history)
            entry = SnapshotEntry(number, at, snapshot.account, tuple(regions), history.current, summary, tuple(lines))
            SNAPSHOT.write(self._paths.snapshot(number), snapshot)
            previous = [other for other in history.entries if other.number == history.current]
            INDEX.write(self._paths.index, History(number, (*previous, entry)))
            # In the opposite order, a killed command could delete the active snapshot.
            for dropped in history.entries:
                if dropped not in previous:
                    self._paths.snapshot(dropped.number).unlink(missing_ok=True)
            return AppliedRefresh(before, snapshot, entry)

    def revert(self, number: int | None) -> tuple[int, int]:
        """Activate an earlier snapshot, by default the predecessor of the active one. Return the old and new numbers.

        Reverting to number 0, the bundled catalog, works even if the index is damaged: the damaged index is renamed.
        """
        with self._locked():
            if number == BUNDLED:
                return self._activate_bundled(), BUNDLED
            history = self.history()
            active = history.entry(history.current)
            if number is None and active is None:
                message = f"no snapshot is active for {self._target}: the bundled catalog is in use"
                raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", self._target))
            chosen = number if number is not None else active.after if active else BUNDLED
            if chosen != BUNDLED:
                if history.entry(chosen) is None:
                    message = f"there is no snapshot {chosen} for {self._target}"
                    raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", self._target))
                self._snapshot(chosen)
            INDEX.write(self._paths.index, replace(history, current=chosen))
            return history.current, chosen

    def _next(self, history: History) -> int:
        """Return a number that no file uses, not even one left over from a killed refresh or a damaged index."""
        names = [_NUMBERED.fullmatch(path.name) for path in self._paths.root.glob("overlay-*.json")]
        written = [int(name[1]) for name in names if name]
        return max((BUNDLED, *written, *(entry.number for entry in history.entries))) + 1

    def _activate_bundled(self) -> int:
        try:
            history = self.history()
        except NewerFormatError:
            raise
        except StateError:
            # Keep the damaged index for inspection. The snapshots that it lists are not deleted.
            with contextlib.suppress(OSError):
                self._paths.index.replace(self._paths.index.with_suffix(".damaged"))
            return BUNDLED
        INDEX.write(self._paths.index, replace(history, current=BUNDLED))
        return history.current

    def _snapshot(self, number: int) -> CatalogSnapshot:
        path = self._paths.snapshot(number)
        snapshot = self._read(SNAPSHOT, path)
        if snapshot is None:
            raise self._damaged(path, "it does not exist")
        if snapshot.target != self._target:
            raise self._damaged(path, f"it belongs to target {snapshot.target}, not {self._target}")
        return snapshot

    def _read(self, document: StateFile[_T], path: Path) -> _T | None:
        """Return the content of a file, or None if it does not exist."""
        try:
            return document.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as err:
            raise self._damaged(path, str(err.strerror)) from err
        except ValueError as err:
            raise self._damaged(path, str(err)) from err

    def _damaged(self, path: Path, why: str) -> StateError:
        message = f"the stored catalog file {path} cannot be used: {why}"
        revert = command("cloudgpu", "catalog", "revert", "0", "--on", self._target)
        return StateError(message, hint=f"return to the bundled catalog with `{revert}`")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one writer at a time. The kernel releases the lock of a process that dies."""
        try:
            files.make_private_directory(self._paths.root)
            lock = files.open_for_appending(self._paths.lock)
        except OSError as err:
            raise unwritable_error(self._paths.root, err) from err
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def known_catalog(home: Home, target: str) -> Catalog:
    """Return the bundled catalog updated with the active snapshot of this target."""
    snapshot = CatalogSnapshots(home, target).current()
    return load() if snapshot is None else apply_snapshot(load(), snapshot)
