"""Catalog snapshots of one home and target: one file per refresh, and an index that selects the active one.

A killed refresh leaves the index, and therefore the active snapshot, unchanged. Concurrent refreshes take turns.
"""

import contextlib
import fcntl
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cloudgpu import bounds, files
from cloudgpu.catalog.snapshot import Overlay
from cloudgpu.catalog.snapshot_document import document, overlay_of
from cloudgpu.decoding import MALFORMED, decoded
from cloudgpu.errors import StateError, UsageError
from cloudgpu.paths import Home, unwritable
from cloudgpu.state.cluster_and_run_records import write_durably
from cloudgpu.text import command

KEPT: Final = 20
"""How many overlays can be gone back to."""
SHIPPED: Final = 0
"""Stands for the catalogue alone, without an overlay."""
_SCHEMA: Final = 1
_NUMBERED: Final = re.compile(r"overlay-([0-9]{1,9})\.json")


@dataclass(frozen=True)
class SnapshotEntry:
    """One refresh. `after` is the number of the snapshot it is based on, 0 for the bundled catalog."""

    number: int
    at: datetime
    account: str
    regions: tuple[str, ...]
    after: int
    summary: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class History:
    """The active snapshot, 0 for none, and every refresh that can be reverted to, oldest first."""

    current: int = SHIPPED
    entries: tuple[SnapshotEntry, ...] = ()

    def entry(self, number: int) -> SnapshotEntry | None:
        """Return the refresh with this number."""
        return next((entry for entry in self.entries if entry.number == number), None)


@dataclass(frozen=True)
class Laid:
    """The result of a refresh: the snapshots before and after it, and its history entry."""

    before: Overlay | None
    overlay: Overlay
    entry: SnapshotEntry


Drafted = Callable[[Overlay | None], tuple[Overlay, str, Sequence[str]]]
"""From the overlay that holds to the next one, with its summary and the lines of what changed."""


class CatalogSnapshots:
    """The catalog snapshots of one target."""

    def __init__(self, home: Home, target: str) -> None:
        self._paths = home.catalog(target)
        self._target = target

    def current(self) -> Overlay | None:
        """Return the active snapshot, or None if the bundled catalog is active.

        Raises:
            StateError: The snapshot cannot be read. Prices are never replaced silently.
        """
        number = self.history().current
        return None if number == SHIPPED else self._overlay(number)

    def history(self) -> History:
        """Return every refresh and the number of the active one.

        Raises:
            StateError: The index cannot be read.
        """
        path = self._paths.index
        stored = self._stored(path)
        if stored is None:
            return History()
        with self._trouble(path):
            if bounds.count(stored["schema"]) != _SCHEMA:
                message = f"it has schema {stored['schema']!r}, and this version of cloudgpu reads {_SCHEMA}"
                raise ValueError(message)
            found = decoded(History, stored)
            if found.current != SHIPPED and found.entry(found.current) is None:
                message = f"it names snapshot {found.current}, which it does not have"
                raise ValueError(message)
        return found

    def add(self, draft: Drafted, *, at: datetime, regions: Sequence[str]) -> Laid:
        """Add a snapshot on top of the active one, after waiting for concurrent refreshes.

        Raises:
            StateError: The active snapshot cannot be read, or the home cannot be written.
        """
        with self._alone():
            history = self.history()
            before = self.current()
            overlay, summary, lines = draft(before)
            number = self._next(history)
            entry = SnapshotEntry(number, at, overlay.account, tuple(regions), history.current, summary, tuple(lines))
            write_durably(self._paths.overlay(number), json.dumps(document(overlay), indent=1) + "\n")
            self._keep(History(number, (*history.entries, entry)))
            return Laid(before, overlay, entry)

    def revert(self, number: int | None) -> tuple[int, int]:
        """Let an earlier overlay hold, by default the one that the present one was laid over; returns old and new.

        Going back to the shipped catalogue works whatever state the files are in: what is damaged is put aside.

        Raises:
            UsageError: There is no overlay of that number, or nothing to go back from.
            StateError: The files cannot be read or written.
        """
        with self._alone():
            if number == SHIPPED:
                return self._shipped(), SHIPPED
            history = self.history()
            present = history.entry(history.current)
            if number is None and present is None:
                message = f"no snapshot is active for {self._target}: the bundled catalog is in use"
                raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", self._target))
            wanted = number if number is not None else present.after if present else SHIPPED
            if wanted != SHIPPED:
                if history.entry(wanted) is None:
                    message = f"there is no snapshot {wanted} for {self._target}"
                    raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", self._target))
                self._overlay(wanted)
            self._keep(replace(history, current=wanted))
            return history.current, wanted

    def _next(self, history: History) -> int:
        """Return a number that no file has, including files left by killed refreshes or a damaged index."""
        names = [_NUMBERED.fullmatch(path.name) for path in self._paths.root.glob("overlay-*.json")]
        written = [int(name[1]) for name in names if name]
        return max((SHIPPED, *written, *(entry.number for entry in history.entries))) + 1

    def _shipped(self) -> int:
        try:
            history = self.history()
        except StateError:
            # Kept beside for whoever wants to look at it; the overlays that it named stay where they are.
            with contextlib.suppress(OSError):
                self._paths.index.replace(self._paths.index.with_suffix(".damaged"))
            return SHIPPED
        self._keep(replace(history, current=SHIPPED))
        return history.current

    def _keep(self, history: History) -> None:
        """Write the index, then take away what it no longer names: the other way round would lose what holds."""
        held = history.entry(history.current)
        needed = {held.number, held.after} if held else set()
        latest = {entry.number for entry in history.entries[-KEPT:]}
        chosen = [entry for entry in history.entries if entry.number in latest | needed]
        rows = [{**asdict(entry), "at": entry.at.isoformat()} for entry in chosen]
        text = json.dumps({"schema": _SCHEMA, "current": history.current, "entries": rows}, indent=1)
        write_durably(self._paths.index, text + "\n")
        for entry in history.entries:
            if entry not in chosen:
                self._paths.overlay(entry.number).unlink(missing_ok=True)

    def _overlay(self, number: int) -> Overlay:
        path = self._paths.overlay(number)
        stored = self._stored(path)
        if stored is None:
            raise self._damaged(path, "it is gone")
        with self._trouble(path):
            overlay = overlay_of(stored)
            if overlay.target != self._target:
                message = f"it was read from {overlay.target}, and this is the place of {self._target}"
                raise ValueError(message)
        return overlay

    def _stored(self, path: Path) -> Any:  # noqa: ANN401 - JSON of unknown shape
        """Return the content of a file, or None if it does not exist."""
        with self._trouble(path):
            try:
                return files.read_json(path)
            except (FileNotFoundError, NotADirectoryError):
                return None

    @contextmanager
    def _trouble(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as err:
            raise self._damaged(path, str(err.strerror)) from err
        except MALFORMED as err:
            raise self._damaged(path, str(err)) from err

    def _damaged(self, path: Path, why: str) -> StateError:
        message = f"the catalog snapshot {path} cannot be used: {why}"
        revert = command("cloudgpu", "catalog", "revert", "0", "--on", self._target)
        return StateError(message, hint=f"`{revert}` returns to the bundled catalog")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Allow one writer at a time. The kernel releases the lock of a process that dies."""
        try:
            self._paths.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = files.open_for_appending(self._paths.lock)
        except OSError as err:
            raise unwritable(self._paths.root, err) from err
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
