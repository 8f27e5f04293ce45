"""The listing of a node's directory: validate its entries, and decide where each one is stored."""

import os
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cloudgpu.errors import StateError
from cloudgpu.ssh.transfer.node_read import stays_inside
from cloudgpu.ssh.transfer.node_tree import Entry, is_folder

_DISTRUST = "do not trust other data from this node"
_MOST = 1 << 62
"""Upper limit for sizes and times. No real file exceeds it, and system calls do not accept larger numbers."""
_LONGEST_NAME = 4096
_LONGEST_REASON = 4096


@dataclass(frozen=True)
class SkippedDownload:
    """A matching file on a node that was not downloaded.

    Attributes:
        path: Path relative to the source directory; empty if the entry represents several files.
        reason: Reason why the file was not downloaded.
        lost: True if contents that a pattern requests are missing, as with an unreadable file. False for a dangling
            symlink, for example.
    """

    path: str
    reason: str
    lost: bool


OnSkipped = Callable[[SkippedDownload], None]
"""Called for each file that could not be downloaded."""
PlaceOf = Callable[[str], str]
"""Returns the path below the local directory of a path below the source directory."""


def same_place(path: str) -> str:
    """Return the path."""
    return path


def placed_entry(entry: Entry, place: PlaceOf) -> Entry:
    """Return an entry with its local path. The target of a symlink is adapted, so that it leads to the same entry."""
    path = place(entry.path)
    if entry.link is None:
        return entry._replace(path=path)
    target = posixpath.normpath(posixpath.join("/", posixpath.dirname(entry.path), entry.link))[1:]
    local_target = place(target) if target else target
    if (path, local_target) == (entry.path, target):
        return entry
    return entry._replace(path=path, link=posixpath.relpath(f"/{local_target}", f"/{posixpath.dirname(path)}"))


class ListedEntry(NamedTuple):
    """A manifest entry from a node, and the bytes that it occupies on the node's disk."""

    entry: Entry
    stored: int


def validate_listed(who: str, fields: object) -> ListedEntry:
    """Validate an entry of a node's listing."""
    match fields:
        case [*plain, int(stored)] if len(plain) == len(Entry._fields) and stored >= 0:
            entry = validate_entry(who, plain)
            return ListedEntry(entry, min(stored, entry.size))
        case _:
            entry = validate_entry(who, fields)
            return ListedEntry(entry, entry.size)


def validate_entry(who: str, fields: object) -> Entry:
    """Validate a manifest entry from a node."""
    match fields:
        case [str(path), int(size), int(mtime_ns), int(mode), None | str() as link] if _plausible(size, mtime_ns):
            entry = Entry(path, size, mtime_ns, mode & 0o777, link)
        case _:
            raise _malformed(who)
    folder = is_folder(entry) and (size, mtime_ns, mode, link) == (0, 0, 0, None)
    names = (path[:-1] if folder else path).split("/") if _writable(path) else [""]
    plain = not any(name in ("", ".", "..") for name in names)
    if not plain or not (link is None or _inside(path, link)):
        raise StateError(
            f"{who} sent a path or symlink that leads outside the download directory: {path!r}",
            hint=_DISTRUST,
        )
    return entry


def validate_skipped(who: str, fields: object) -> SkippedDownload:
    """Validate a node's report of a file that it cannot send."""
    match fields:
        case [str(path), str(reason), bool(lost)]:
            return SkippedDownload(path[:_LONGEST_NAME], reason[:_LONGEST_REASON], lost)
        case _:
            raise _malformed(who)


def _inside(path: str, link: str) -> bool:
    return _writable(link) and stays_inside(os.fsencode(path), os.fsencode(link))


def _plausible(size: int, mtime_ns: int) -> bool:
    return 0 <= size < _MOST and -_MOST < mtime_ns < _MOST


def _writable(name: str) -> bool:
    """Return True if the text can be encoded as a file name on this machine and contains no null byte."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _malformed(who: str) -> StateError:
    return StateError(f"{who} sent a malformed file list", hint=_DISTRUST)
