"""Files that are either the old or the new version after a crash, never half of one."""

from pathlib import Path

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable


class NotSavedError(StateError):
    """A call that could not be made durable, and therefore had no effect."""


def not_saved(cause: StateError) -> NotSavedError:
    """Return the error of a call that had no effect because of this one."""
    return NotSavedError(
        f"the rehearsal cloud cannot save this call, so it had no effect: {cause.message}",
        hint="free some space there, then repeat it; calls that delete something still work",
    )


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, mode 0600, on the disk before this returns.

    Raises:
        StateError: The disk is full or the directory cannot be written.
    """
    try:
        files.replace(path, content)
    except OSError as err:
        raise unwritable(path, err) from err
