"""Files that are whole or not there, and locks that die with their holder."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from contextlib import contextmanager
from typing import Any, Iterator

from .errors import DamagedError
from .foreign import parsed_object


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace a JSON file durably: a reader, or a crash at any moment, finds the old one or the new one.

    Raises:
        OSError: The disk is full or the directory is gone; the old file stays.
    """
    folder = os.path.dirname(path)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(json.dumps(value, separators=(",", ":")).encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_folder(folder)


def read_json(path: str) -> dict[str, Any] | None:
    """The file's value, or None when there is no such file.

    Raises:
        DamagedError: It holds no JSON object.
    """
    try:
        with open(path, "rb") as stream:
            return parsed_object(stream.read())
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedError(f"{path} is damaged", hint="remove it") from None


def lock_file(path: str) -> int:
    """Open a file and wait until it is locked by nobody else; the lock ends when the last copy of the handle closes."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    wait_lock(handle)
    return handle


def wait_lock(handle: int) -> None:
    """Wait until nobody else holds the lock, and take it."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def try_lock(handle: int) -> bool:
    """Lock it now, or say that somebody else holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Hold the lock on a file for a while."""
    handle = lock_file(path)
    try:
        yield handle
    finally:
        os.close(handle)


def _sync_folder(folder: str) -> None:
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
