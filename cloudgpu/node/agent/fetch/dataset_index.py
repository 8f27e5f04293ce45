"""What a node knows of the datasets that it has: sizes, times and checksums of files that were verified.

`~/.cloudgpu/data/` holds a record for each dataset and place. A file that has the size and the time of its record is
neither fetched nor read again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Callable

from .. import files
from ..agent_home import own_folder
from ..errors import AgentError
from ..foreign import MALFORMED, mapping, text, whole
from .request import RequestedFile


class Record:
    """Of one dataset at one place; without a name it remembers nothing."""

    def __init__(self, spec: dict[str, Any]) -> None:
        cache = spec.get("cache") or {}
        self._about = {key: str(cache.get(key) or "") for key in ("name", "source", "to")}
        self._files: dict[str, list[Any]] = {}
        if self._about["source"]:
            with contextlib.suppress(*MALFORMED):
                stored = mapping((files.read_json(self._path) or {}).get("files") or {})
                self._files = {path: _seen(row) for path, row in stored.items()}

    @property
    def _path(self) -> str:
        key = f"{self._about['source']}\0{self._about['to']}".encode()
        return os.path.join(own_folder("data"), f"{hashlib.sha256(key).hexdigest()[:24]}.json")

    def knows(self, wanted: RequestedFile, stat: os.stat_result) -> bool:
        """Whether this very file was verified to be this very content."""
        return bool(wanted.mark) and self._files.get(wanted.path) == [stat.st_size, stat.st_mtime_ns, wanted.mark]

    def mark_of(self, path: str, stat: os.stat_result) -> str | None:
        """What vouches for a file as it is now; None where it is not what was verified.

        Without a name nobody has verified anything: size and time tell one content from another.
        """
        if not self._about["source"]:
            return f"etag {stat.st_size}-{stat.st_mtime_ns}"
        size, mtime_ns, mark = self._files.get(path) or (None, None, "")
        return str(mark) if (size, mtime_ns) == (stat.st_size, stat.st_mtime_ns) else None

    def note(self, wanted: RequestedFile) -> None:
        """It was verified, as it is now."""
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(wanted.path)
            self._files[wanted.path] = [stat.st_size, stat.st_mtime_ns, wanted.mark]

    def save(self) -> None:
        """Make it last. A full disk only costs the memory."""
        if self._about["source"] and self._files:
            with contextlib.suppress(OSError):
                os.makedirs(own_folder("data"), mode=0o700, exist_ok=True)
                files.write_json(self._path, {**self._about, "files": self._files})


def _seen(row: Any) -> list[Any]:  # noqa: ANN401 - JSON
    size, mtime_ns, mark = row
    return [whole(size), mtime_ns, text(mark)]


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """`forget`: remove from this node what was fetched of a dataset, file by file, and nothing else.

    Raises:
        AgentError: A file cannot be removed.
    """
    record = Record(spec)
    removed, freed = _removed(record._files)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(record._path)
    emit({"removed": removed, "bytes": freed})


def forget_all(folder: str) -> None:
    """Remove every file that the records in a folder name: the cluster leaves this host.

    Raises:
        AgentError: A file cannot be removed.
    """
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with contextlib.suppress(ValueError):
            _removed((files.read_json(os.path.join(folder, name)) or {}).get("files") or {})


def _removed(listed: dict[str, list[Any]]) -> tuple[int, int]:
    """How many files were removed, and their bytes; folders that are empty then go too."""
    freed, folders = 0, set()
    for path, (size, *_) in listed.items():
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AgentError(f"{path}: cannot be removed: {error.strerror}", code="io") from None
        freed += int(size)
        folders.add(os.path.dirname(path))
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.removedirs(folder)
    return len(listed), freed
