"""The journal: a durable record of each operation, written before its API call is sent.

Each line is a JSON object with a checksum. The first line contains the account and the endpoint. A killed process may
leave an incomplete last line, which is removed. Any other invalid line means that the journal is damaged.
"""

import json
import os
import secrets
import threading
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.decoding import decode_as, malformed_as
from cloudgpu.engine.direct.journal_state import Row, State
from cloudgpu.errors import BusyError, StateError
from cloudgpu.files import parse_json
from cloudgpu.paths import unwritable_error

_VERSION: Final = 1
_CHECKSUM: Final = ',"crc":"00000000"}'


@dataclass(frozen=True)
class JournalAccount:
    """The AWS account of the resources in a journal. `endpoint` is the rehearsal cloud's ID; empty for real AWS."""

    account: str
    endpoint: str = ""


@dataclass(frozen=True)
class JournalContent:
    """The content of a journal file."""

    state: State
    header: Row | None
    sound_bytes: int
    """Number of bytes in complete rows; any bytes after them are a truncated row."""

    @property
    def salt(self) -> str:
        """The salt for hashing secrets, or a new salt if the journal has no header."""
        return str(self.header["salt"]) if self.header else secrets.token_hex(16)

    @property
    def account(self) -> JournalAccount | None:
        """The account of the resources; None if the journal lists none."""
        if self.header is None or (self.state.closed and self.state.empty):
            return None
        return _account(self.header)


def load(path: Path, identity: JournalAccount) -> JournalContent:
    """Read a journal without changing it. If the file does not exist, return an empty state."""
    try:
        data = files.read_bytes(path, files.JOURNAL_BYTES)
    except FileNotFoundError:
        data = b""
    except OSError as err:
        message = f"cannot read the journal {path}: {err.strerror}"
        raise StateError(message, hint="check the permissions of the state home") from err
    loaded = _fold(path, data)
    theirs = loaded.account
    if theirs is not None and theirs != identity:
        message = f"the journal {path} lists resources of {_named(theirs)}, but the credentials are for "
        raise StateError(f"{message}{_named(identity)}", hint=f"use the credentials of {_named(theirs)}")
    return loaded


def account_of(path: Path) -> JournalAccount | None:
    """Return the account of the resources in a journal; None if it lists none or its first line cannot be read."""
    try:
        data = files.read_bytes(path, files.JOURNAL_BYTES)
    except OSError:
        return None
    try:
        return _fold(path, data).account
    except StateError:  # a row is damaged, but the header may be intact
        first_line = data.partition(b"\n")[0] + b"\n"
    try:
        return _fold(path, first_line).account
    except StateError:
        return None


class Journal:
    """A journal open for writing. Several threads may add rows; rows added in parallel share an fsync."""

    def __init__(self, path: Path, identity: JournalAccount, clock: Clock, *, required: bool = True) -> None:
        """Open or create a journal and remove a truncated last line.

        If `required` is False, write errors set `problem` instead of being raised. Pass False only for deletions:
        the next command that uses the journal checks with the cloud whether the listed resources still exist.
        """
        self.path = path
        self._required = required
        self.problem = ""
        """Message of the write error that stopped this journal from recording further rows; empty if there was none."""
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._written = 0
        self._synced = 0
        self._broken = False
        try:
            files.make_private_directory(path.parent)
            self._fd = files.open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as err:
            self._fail(err)
            self._fd = _read_only(path)
        try:
            self._begin()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    @property
    def lock(self) -> threading.Lock:
        """The lock to hold while reading several parts of `state`."""
        return self._lock

    def next_seq(self) -> int:
        """Return a unique sequence number for an intent."""
        with self._lock:
            seq = self.state.next_seq
            self.state.next_seq += 1
            return seq

    def add(self, row: Row) -> None:
        """Append a row durably."""
        with self._lock:
            self._append(row)
            self.state.apply(row)
            end_of_row = self._written
        self._sync(end_of_row)

    def now(self) -> str:
        """Return the current time in the format used in rows."""
        return self._clock.now().isoformat()

    def _begin(self) -> None:
        loaded = load(self.path, self._identity)
        header = loaded.header
        if header is not None and _account(header) != self._identity:
            # the journal is closed and empty, so restarting it for the new account loses no resource
            self._truncate(0)
            loaded, header = JournalContent(State(), None, 0), None
        self.state = loaded.state
        self._written = self._synced = loaded.sound_bytes
        if os.fstat(self._fd).st_size != loaded.sound_bytes:
            self._truncate(loaded.sound_bytes)
        self.salt = loaded.salt
        if header is None:
            self._start()

    def _start(self) -> None:
        header = {"row": "header", "version": _VERSION, **asdict(self._identity), "salt": self.salt, "at": self.now()}
        with self._lock:
            self._append(header)
        self._sync(self._written)
        files.sync_directory(self.path.parent)

    def _fail(self, err: OSError) -> None:
        """Raise an error if the journal is required; otherwise stop writing rows and keep the message in `problem`."""
        failure = unwritable_error(self.path, err)
        if self._required:
            raise failure from err
        self.problem = failure.message

    def _append(self, row: Row) -> None:
        if self.problem:
            return
        if self._broken:
            message = f"an earlier write to the journal {self.path} failed, so no further operations are started"
            raise StateError(message, hint="free some space, then run the command again")
        if os.fstat(self._fd).st_size != self._written:
            message = f"another process is writing to the journal {self.path}"
            raise BusyError(message, hint="wait for the other command to finish")
        line = _line(row)
        try:
            _write(self._fd, line)
        except OSError as err:
            self._undo()
            self._fail(err)
            return
        self._written += len(line)

    def _undo(self) -> None:
        """Remove a truncated row, so that the next row starts on a new line."""
        try:
            os.ftruncate(self._fd, self._written)
        except OSError:
            self._broken = True

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as err:
            self._fail(err)

    def _sync(self, upto: int) -> None:
        """Sync once for all rows written so far, so that parallel rows share an fsync."""
        with self._sync_lock:
            if self._synced >= upto:
                return
            with self._lock:
                reached = self._written
            try:
                os.fsync(self._fd)
            except OSError as err:
                self._broken = True
                self._fail(err)
            self._synced = reached


def _read_only(path: Path) -> int:
    try:
        return files.open_descriptor(path, os.O_RDONLY)
    except OSError as err:
        raise unwritable_error(path, err) from err


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _line(row: Row) -> bytes:
    body = json.dumps(row, separators=(",", ":"))
    return f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def _row(line: bytes) -> Row | None:
    """Parse a line into a row; return None if its checksum is wrong."""
    body = line[: -len(_CHECKSUM)] + b"}"
    expected = f',"crc":"{zlib.crc32(body):08x}"}}'.encode()
    if not line.endswith(expected):
        return None
    try:
        row = parse_json(body)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _fold(path: Path, data: bytes) -> JournalContent:
    state, header, sound = State(), None, 0
    for number, line in _lines(data):
        row = _row(line)
        if row is None or (header is None) != (row.get("row") == "header"):
            raise _damaged(path, number, "")
        with malformed_as(partial(_damaged, path, number)):
            if header is None:
                header = _checked_header(path, row)
            else:
                state.apply(row)
        sound += len(line) + 1
    return JournalContent(state, header, sound)


def _damaged(path: Path, number: int, why: str) -> StateError:
    message = f"the journal {path} is damaged at line {number}{': ' if why else ''}{why}"
    return StateError(message, hint="keep a copy of the file; `cloudgpu down` still finds the resources by their tags")


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and text of each complete line. Drop trailing zero bytes, which a power failure may leave."""
    finished = data.rstrip(b"\0").rpartition(b"\n")[0]
    if b"\n" in data:
        yield from enumerate(finished.split(b"\n"), start=1)


def _checked_header(path: Path, row: Row) -> Row:
    if row.get("version") != _VERSION:
        message = f"the journal {path} has version {row.get('version')}, but this version of cloudgpu reads {_VERSION}"
        raise StateError(message, hint="use the version of cloudgpu that wrote the journal")
    decode_as(str, row["salt"])
    # a header without an endpoint belongs to real AWS, the default of `JournalAccount`
    return {**row, **asdict(decode_as(JournalAccount, row))}


def _account(header: Row) -> JournalAccount:
    return JournalAccount(header["account"], header["endpoint"])


def _named(account: JournalAccount) -> str:
    return f"account {account.account} at {account.endpoint or 'AWS'}"
