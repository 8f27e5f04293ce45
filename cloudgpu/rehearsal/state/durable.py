"""Write files atomically, and reserve disk space so that deletions can be saved even when the disk is full."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable_error

SIZE: Final = 2 * files.MIB
"""Size of the file in bytes: enough to save a batch and new snapshots of a region with hundreds of instances."""


class NotSavedError(StateError):
    """A call could not be saved to disk and therefore had no effect."""


def not_saved(cause: StateError) -> NotSavedError:
    """Return the error for a call that had no effect because saving it failed."""
    return NotSavedError(
        f"the rehearsal cloud cannot save this call, so it had no effect: {cause.message}",
        hint="free some disk space, then retry; deletions still work",
    )


def write_durably(path: Path, content: bytes) -> None:
    """Replace the file with `content`, mode 0600, and flush it to disk."""
    try:
        files.replace(path, content)
    except OSError as err:
        raise unwritable_error(path, err) from err


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
