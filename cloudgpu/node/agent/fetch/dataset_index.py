"""Index of the verified dataset files on a node: their size, mtime and content identifier.

`~/.cloudgpu/data/` contains one record per dataset and target directory. A file that still has the recorded size and
mtime is neither downloaded nor read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable

from .. import files
from ..files import agent_folder
from ..heartbeat import advance
from ..untrusted_data import MALFORMED, AgentError, require_integer, require_object, text
from .request import RequestedFile


class Record:
    """The record of a dataset's files in a target directory. A dataset without a source has no saved record."""

    def __init__(self, spec: dict[str, Any]) -> None:
        cache = spec.get("cache") or {}
        self._about = {key: str(cache.get(key) or "") for key in ("name", "source", "to")}
        self._files: dict[str, list[Any]] = {}
        if self._about["source"]:
            with contextlib.suppress(*MALFORMED):
                stored = require_object((files.read_json(self._path) or {}).get("files") or {})
                self._files = {path: _parsed_row(row) for path, row in stored.items()}

    @property
    def _path(self) -> str:
        key = f"{self._about['source']}\0{self._about['to']}".encode()
        return os.path.join(agent_folder("data"), f"{hashlib.sha256(key).hexdigest()[:24]}.json")

    def is_verified(self, file: RequestedFile, stat: os.stat_result) -> bool:
        """Return True if the file was verified and has not changed since."""
        return bool(file.mark) and self._files.get(file.path) == [stat.st_size, stat.st_mtime_ns, file.mark]

    def mark_of(self, path: str, stat: os.stat_result) -> str | None:
        """Return the identifier of a file's verified content, or None if the file is unverified or has changed since.

        For a dataset without a source, nothing is recorded, so size and mtime identify the content.
        """
        if not self._about["source"]:
            return f"etag {stat.st_size}-{stat.st_mtime_ns}"
        size, mtime_ns, mark = self._files.get(path) or (None, None, "")
        return str(mark) if (size, mtime_ns) == (stat.st_size, stat.st_mtime_ns) else None

    def note(self, file: RequestedFile) -> None:
        """Record the file's current size, mtime and identifier as verified. Ignore a missing file."""
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(file.path)
            self._files[file.path] = [stat.st_size, stat.st_mtime_ns, file.mark]

    def save(self) -> None:
        """Save the record. Disk errors are ignored, because the next download verifies the files again."""
        if self._about["source"] and self._files:
            with contextlib.suppress(OSError):
                os.makedirs(agent_folder("data"), mode=0o700, exist_ok=True)
                files.write_json(self._path, {**self._about, "files": self._files})


def _parsed_row(row: Any) -> list[Any]:  # noqa: ANN401 - JSON
    size, mtime_ns, mark = row
    return [require_integer(size), mtime_ns, text(mark)]


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """`forget`: delete the downloaded files of a dataset from this node."""
    record = Record(spec)
    removed, freed = _removed(record._files)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(record._path)
    emit({"removed": removed, "bytes": freed})


def forget_all(folder: str) -> None:
    """Delete every dataset file that the records in `folder` list. Used when a cluster releases this host."""
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with contextlib.suppress(ValueError):
            _removed((files.read_json(os.path.join(folder, name)) or {}).get("files") or {})


def _removed(listed: dict[str, list[Any]]) -> tuple[int, int]:
    """Delete the listed files and the directories that become empty.

    Return the number of listed files, including files that no longer existed, and the number of bytes freed.
    """
    freed, folders = 0, set()
    for path, (size, *_) in listed.items():
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AgentError(f"cannot delete {path}: {error.strerror}", code="io") from None
        freed += int(size)
        advance()
        folders.add(os.path.dirname(path))
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.removedirs(folder)
    return len(listed), freed
