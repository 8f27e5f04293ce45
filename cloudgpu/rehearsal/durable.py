"""Files that are either the old or the new version after a crash, never half of one."""

import os
import tempfile
from pathlib import Path

from cloudgpu.paths import unwritable


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, mode 0600, on the disk before this returns.

    Raises:
        StateError: The disk is full or the directory cannot be written.
    """
    try:
        _replace(path, content)
    except OSError as err:
        raise unwritable(path, err) from err


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable: without this a power cut may bring the old name back."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
