"""Reserved disk space, so that deletions can be saved even when the disk is full."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.paths import unwritable_error

SIZE: Final = 2 * files.MIB
"""Size of the file in bytes: enough to save a batch and new snapshots of a region with hundreds of instances."""


class Reserve:
    """A file that only reserves disk space. Callers must hold the simulated cloud's lock."""

    def __init__(self, path: Path) -> None:
        """Store the path. `hold` creates the file."""
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Create the file unless it exists and has the right size."""
        if self._held:
            return
        try:
            if not self._path.exists() or self._path.stat().st_size != SIZE:
                self._make()
        except OSError as err:
            raise unwritable_error(self._path.parent, err) from err
        self._held = True

    def release(self) -> bool:
        """Delete the file to free the reserved space. Return False if no space was reserved or the deletion failed."""
        if not self._held:
            return False
        self._held = False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _make(self) -> None:
        # Check the free space first: using the last free blocks, even briefly, would make other writers fail.
        if shutil.disk_usage(self._path.parent).free < SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            # Random bytes, because a compressing file system would allocate no blocks for zeros.
            files.create(self._path, os.urandom(SIZE), durable=False)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
