"""Write files atomically: after a crash, a file contains either the old or the new version."""

from pathlib import Path

from cloudgpu import files
from cloudgpu.errors import StateError
from cloudgpu.paths import unwritable_error


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
