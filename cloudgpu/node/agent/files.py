"""Atomic file writes, file locks that the kernel releases, data that outlives a run, and UTC timestamps."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import Any, Iterator

from .untrusted_data import DamagedError, parse_json_object


def write_json(path: str, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically and durably: readers see the old or the new content, even after a crash."""
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
    """Return the file's JSON object, or None if the file does not exist."""
    try:
        with open(path, "rb") as stream:
            return parse_json_object(stream.read())
    except FileNotFoundError:
        return None
    except ValueError:
        raise DamagedError(f"{path} is damaged", hint="delete the file") from None


def lock_file(path: str) -> int:
    """Open or create a file and wait for its lock. The lock is released when the last copy of the handle is closed."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    wait_lock(handle)
    return handle


def wait_lock(handle: int) -> None:
    """Acquire the lock, waiting until it is free."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def try_lock(handle: int) -> bool:
    """Try to acquire the lock without waiting. Return False if another process holds it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: str) -> Iterator[int]:
    """Hold the lock on a file during the block."""
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


def agent_folder(name: str) -> str:
    """Return the path of a directory next to the agent's file, such as `~/.cloudgpu/data`. It need not exist yet."""
    return os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)


def utc(seconds: float) -> str:
    """Format seconds since the epoch as `2026-11-21T05:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def now() -> str:
    """Return the current time, formatted by `utc`."""
    return utc(time.time())
