"""Reserved disk space, so that deletions can be saved even when the disk is full."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.paths import unwritable

SIZE: Final = 2 * files.MIB
"""Enough for the old and new snapshot of a region with hundreds of instances, and for a batch with both."""


class Reserve:
    """A file that only reserves space. Callers must hold the world's lock."""

    def __init__(self, path: Path) -> None:
        """Create nothing yet."""
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Create the file if it does not exist.

        Raises:
            StateError: The disk is full or cannot be written.
        """
        if self._held:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != SIZE:
                self._make()
        except OSError as err:
            raise unwritable(self._path.parent, err) from err
        self._held = True

    def release(self) -> bool:
        """Free the space; return True if there was any."""
        if not self._held:
            return False
        self._held = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _make(self) -> None:
        # Check the free space first: taking the last blocks even briefly would make other writers fail.
        if shutil.disk_usage(self._path.parent).free < SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            # Random bytes: a compressing file system would reserve nothing for zeros.
            files.create(self._path, os.urandom(SIZE), durable=False)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
