"""Download file trees from a node, and single files: only differences, small files first, each replaced atomically."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from cloudgpu.errors import RemoteCommandError
from cloudgpu.paths import unwritable_error
from cloudgpu.ssh.base import OnBytes, ignore_bytes, node_label
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer.glob import glob_regexes
from cloudgpu.ssh.transfer.listing import (
    ListedEntry,
    OnSkipped,
    PlaceOf,
    SkippedDownload,
    placed_entry,
    same_place,
    validate_listed,
    validate_skipped,
)
from cloudgpu.ssh.transfer.node_program import (
    NOISE_BYTES,
    REASON_LENGTH,
    StartedCommand,
    TransferConnection,
    broken,
    counted,
    encode_message,
    malformed_response,
    node_request,
    paced_output,
    read_answer,
    verb_command,
)
from cloudgpu.ssh.transfer.node_read import MOST_ENTRIES
from cloudgpu.ssh.transfer.node_tree import MARK, Entry, entry_at, is_folder, same
from cloudgpu.ssh.transfer.receive import DISK_FULL, DownloadDirectory, ReceiveStream, reserve_bytes
from cloudgpu.text import plural, size_text

_GET = """
case "$1" in \\~/*) from=$HOME/${1#\\~/} ;; *) from=$1 ;; esac
printf '\\036cloudgpu\\036'
exec cat -- "$from"
"""

_LISTING_BYTES: Final = 1 << 30
_LISTING_MESSAGE_BYTES: Final = 32 << 20
"""Maximum sizes in bytes of a listing, and of each of its messages, which are decoded one after the other."""
_LISTING_S: Final = 1800.0
"""Time limit for a listing, in seconds."""
_READ_AT_ONCE: Final = 20_000
"""Maximum number of files that one command downloads, because both sides hold the list of them in memory."""
_MOST_NAMED: Final = 20
"""Maximum number of files that are named if they do not fit on the disk."""
_BLOCK: Final = 4096
_DIGITS: Final = 10


def fetch_tree(
    host: TransferConnection,
    source: str,
    patterns: Sequence[str],
    to: Path,
    on_skipped: OnSkipped | None = None,
    on_bytes: OnBytes = ignore_bytes,
    *,
    place: PlaceOf = same_place,
) -> list[str]:
    """Download the matching files that are missing or different in `to`. Return the paths of all matching files.

    Patterns are globs for whole paths below `source`, and the returned paths are relative to `source`. A matching
    directory includes everything below it, and an empty list of patterns matches everything. Empty directories that
    match are created, but not returned. Symlinks within `source` become relative. Small files come first, so that a
    large one does not delay or prevent them. Files that cannot be downloaded (a symlink that points elsewhere, a
    socket, an unreadable file, a file that does not fit on the disk) are passed to `on_skipped` and not returned. The
    paths that the node sends are not trusted: a path outside `to` is an error.

    Args:
        host: Connection to the node.
        source: Directory on the node.
        patterns: Globs.
        to: Local directory.
        on_skipped: Called for each file that cannot be downloaded.
        on_bytes: Called with the progress.
        place: Returns the path below `to` of a path below `source`.
    """
    root = os.fsencode(to)
    names: list[str] = []
    missing: list[ListedEntry] = []
    skipped: list[SkippedDownload] = []
    for listed in _listed(host, source, patterns, skipped):
        if not is_folder(listed.entry):
            names.append(listed.entry.path)
        local = placed_entry(listed.entry, place)
        if not _is_present(root, local):
            missing.append(listed)
    download = _Download(host, source, to, place)
    try:
        if missing:
            skipped += download.receive(missing, on_bytes)
    except OSError as err:
        raise unwritable_error(to, err) from err
    if on_skipped is not None:
        for skip in skipped:
            on_skipped(skip)
    lost = {skip.path for skip in skipped} | {item.entry.path for item in download.too_large}
    return sorted(name for name in names if name not in lost)


def _is_present(root: bytes, local: Entry) -> bool:
    """Return True if the local entry need not be downloaded."""
    try:
        return same(local, entry_at(root, os.fsencode(local.path)))
    except OSError:  # for example, the name is too long; the download reports it
        return False


def _listed(
    host: TransferConnection, source: str, patterns: Sequence[str], skipped: list[SkippedDownload]
) -> Iterator[ListedEntry]:
    """Yield the validated entries of a node's listing; add the files that the node cannot send to `skipped`."""
    problem, who = f"cannot list {source}", node_label(host.node)
    running = host.start(verb_command("list", source), node_request(encode_message(glob_regexes(patterns))))
    arriving = ReceiveStream(paced_output(running, _LISTING_S))
    count = 0
    for message in _listing_messages(arriving):
        match message:
            case {"entries": [*entries], **rest} if count + len(entries) <= MOST_ENTRIES:
                count += len(entries)
                yield from (validate_listed(who, fields) for fields in entries)
            case _:
                break
        match rest:
            case {"skipped": [*unsendable], "unnamed": int(unnamed)} if arriving.ended() and running.exit_code == 0:
                skipped += [validate_skipped(who, fields) for fields in unsendable]
                if unnamed > 0:
                    skipped.append(
                        SkippedDownload("", f"{plural(unnamed, 'more path')} cannot be downloaded", lost=False)
                    )
                return
    raise _unfinished(host, arriving, running, problem)


def _listing_messages(arriving: ReceiveStream) -> Iterator[object]:
    """Yield the messages of a listing until one is malformed, or the listing is too long."""
    left = _LISTING_BYTES
    if not arriving.skip_past(MARK, within=NOISE_BYTES):
        return
    while (text := arriving.message(min(left, _LISTING_MESSAGE_BYTES))) is not None:
        left -= len(text)
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            return


def _unfinished(
    host: TransferConnection, arriving: ReceiveStream, running: StartedCommand, problem: str
) -> RemoteCommandError:
    """Return the error for a response that ended early or is malformed, and stop reading it."""
    if arriving.ended() and running.exit_code != 0:
        return broken(host, problem, running)
    running.close()
    return malformed_response(host, problem)


class _Download:
    """The download of listed entries into a directory."""

    def __init__(self, host: TransferConnection, source: str, to: Path, place: PlaceOf) -> None:
        self._host = host
        self._source = source
        self._to = to
        self._place = place
        self._problem = f"cannot read {source}"
        self.too_large: Sequence[ListedEntry] = ()
        """Files that do not fit on the disk."""

    def receive(self, missing: Sequence[ListedEntry], on_bytes: OnBytes) -> list[SkippedDownload]:
        """Receive the files, small ones first, then create symlinks and empty directories.

        A file that does not fit on the disk remains on the node, and so do larger ones. Returns what could not be
        downloaded.
        """
        self._to.mkdir(parents=True, exist_ok=True)
        files = sorted(filter(_has_contents, missing), key=_small_first)
        fitting = self._fitting(files)
        total = sum(item.stored for item in files[:fitting])
        skipped: list[SkippedDownload] = []
        received = done = 0
        try:
            while received < fitting:
                batch = files[received : min(received + _READ_AT_ONCE, fitting)]
                skipped += self._receive_batch(batch, done, total, on_bytes)
                received += len(batch)
                done += sum(item.stored for item in batch)
        except _DiskFullError as err:
            received += err.received
        others = [item.entry for item in missing if not _has_contents(item)]
        if others:
            with DownloadDirectory(self._to) as staging:
                for entry in others:
                    create = staging.make_folder if is_folder(entry) else staging.link
                    create(placed_entry(entry, self._place))
                skipped += self._unstorable(staging, others)
        self.too_large = files[received:]
        return skipped + self._named_too_large()

    def _fitting(self, files: Sequence[ListedEntry]) -> int:
        """Return how many of the files, in their order, fit on the disk."""
        free = shutil.disk_usage(self._to).free - reserve_bytes(self._to)
        for count, item in enumerate(files):
            free -= _cost(item)
            if free < 0:
                return count
        return len(files)

    def _named_too_large(self) -> list[SkippedDownload]:
        """Describe the files that do not fit on the disk."""
        files = self.too_large
        free = size_text(shutil.disk_usage(self._to).free)
        where = f"only {free} is free on the disk that holds {self._to}; it remains in {self._source} on the node"
        named = [
            SkippedDownload(item.entry.path, f"needs {size_text(item.stored)}, but {where}", lost=True)
            for item in files[:_MOST_NAMED]
        ]
        others = files[_MOST_NAMED:]
        if others:
            size = size_text(sum(item.stored for item in others))
            named.append(
                SkippedDownload("", f"there is no space for {plural(len(others), 'more file')} ({size})", lost=True)
            )
        return named

    def _receive_batch(
        self, batch: Sequence[ListedEntry], done: int, total: int, on_bytes: OnBytes
    ) -> list[SkippedDownload]:
        """Receive the contents of some files, and move each complete file into place.

        Returns the files that the node could not send although it had listed them, and those that cannot be stored.
        """
        files = [item.entry for item in batch]
        running = self._host.start(verb_command("read", self._source), node_request(encode_message(files)))
        with DownloadDirectory(self._to) as staging:
            total_here = sum(item.stored for item in batch)
            output = counted(paced_output(running), total_here, _shifted(on_bytes, done, total))
            arriving = ReceiveStream(output)
            marked = arriving.skip_past(MARK, within=NOISE_BYTES)
            if not marked or not self._receive_files(staging, files, arriving, running):
                raise _unfinished(self._host, arriving, running, self._problem)
            trailer = read_answer(self._host, arriving, running, self._problem, marked=True)
            report = trailer if isinstance(trailer, dict) else {}
            local = [placed_entry(entry, self._place) for entry in files]
            _cut(staging, local, report.get("short"))
            return [*self._unstorable(staging, files), *_unsent(staging, files, local, report.get("failed"))]

    def _receive_files(
        self, staging: DownloadDirectory, files: Sequence[Entry], arriving: ReceiveStream, running: StartedCommand
    ) -> bool:
        """Receive the files one after the other. Return False if the stream ends early or is malformed."""
        for index, entry in enumerate(files):
            try:
                if not staging.receive(placed_entry(entry, self._place), arriving):
                    return False
            except OSError as err:
                if err.errno not in DISK_FULL:
                    raise
                running.close()
                raise _DiskFullError(index) from err
        return True

    def _unstorable(self, staging: DownloadDirectory, entries: Sequence[Entry]) -> list[SkippedDownload]:
        """Describe the entries that the local file system cannot store."""
        return [
            SkippedDownload(entry.path, f"cannot be written to {self._to}: {reason}", lost=True)
            for entry in entries
            if (reason := staging.unstorable.get(self._place(entry.path)))
        ]


class _DiskFullError(Exception):
    """The local disk is full. `received` is the number of files of the batch that were received before."""

    def __init__(self, received: int) -> None:
        super().__init__()
        self.received = received


def _has_contents(item: ListedEntry) -> bool:
    """Return True for files, and False for symlinks and empty directories."""
    return item.entry.link is None and not is_folder(item.entry)


def _cost(item: ListedEntry) -> int:
    """Return the disk space that a file needs."""
    return -(-item.stored // _BLOCK) * _BLOCK


def _small_first(item: ListedEntry) -> tuple[int, str]:
    return item.stored, item.entry.path


def _shifted(on_bytes: OnBytes, before: int, total: int) -> OnBytes:
    """Return a callback for a part of a transfer."""
    return lambda done, _: on_bytes(min(before + done, total), total)


def _numbered(files: Sequence[Entry], report: object) -> Iterator[tuple[Entry, Any]]:
    """Yield each file in a node's report with its value. The report identifies files by index; skip invalid indices."""
    for index, value in report.items() if isinstance(report, dict) else ():
        if index.isdecimal() and index.isascii() and len(index) < _DIGITS and int(index) < len(files):
            yield files[int(index)], value


def _cut(staging: DownloadDirectory, files: Sequence[Entry], short: object) -> None:
    """Truncate the files that became shorter on the node."""
    for entry, size in _numbered(files, short):
        if type(size) is int and 0 <= size <= entry.size:
            staging.cut(entry, size)


def _unsent(
    staging: DownloadDirectory, files: Sequence[Entry], local: Sequence[Entry], failed: object
) -> list[SkippedDownload]:
    """Remove the received parts of files that the node could not read completely, and return these files."""
    unsent = []
    for (entry, reason), (received, _) in zip(_numbered(files, failed), _numbered(local, failed), strict=True):
        staging.drop(received)
        unsent.append(SkippedDownload(entry.path, f"cannot be read: {reason}"[:REASON_LENGTH], lost=True))
    return unsent


def get_file(host: TransferConnection, path: str, to: Path) -> None:
    """Download one file; `to` is written completely or not at all."""
    running = host.start(RemoteCommand("sh", "-c", _GET, "sh", path))
    try:
        with DownloadDirectory(to.parent) as staging:
            arriving = ReceiveStream(paced_output(running))
            arriving.skip_past(MARK, within=NOISE_BYTES)
            staging.receive_all(arriving.pieces())
            if running.exit_code != 0:
                raise broken(host, f"cannot read {path}", running)
            staging.place(to.name)
    except OSError as err:
        raise unwritable_error(to, err) from err
