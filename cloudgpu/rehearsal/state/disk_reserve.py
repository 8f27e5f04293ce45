"""Space that the rehearsal cloud holds back on its disk, so that deletions can be recorded on a full one."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.paths import unwritable

SIZE: Final = 2 * files.MIB
"""Room for the old and the new snapshot of a region with some hundred instances, and for a batch with both."""


class Reserve:
    """One file that nobody reads. Callers hold the world's lock."""

    def __init__(self, path: Path) -> None:
        """Nothing is made yet."""
        self._path = path
        self._held = False

    def hold(self) -> None:
        """Make the file if it is not there.

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
        # Looked up first: taking the last blocks for a moment would make other writers of this disk fail.
        if shutil.disk_usage(self._path.parent).free < SIZE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            # Not zeros: a file system that compresses would hold nothing back for them.
            files.create(self._path, os.urandom(SIZE), durable=False)
        except OSError:
            self._path.unlink(missing_ok=True)
            raise
