"""Files that are either the old or the new version after a crash, never half of one."""

from pathlib import Path

from cloudgpu import files
from cloudgpu.paths import unwritable


def write_durably(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, mode 0600, on the disk before this returns.

    Raises:
        StateError: The disk is full or the directory cannot be written.
    """
    try:
        files.replace(path, content)
    except OSError as err:
        raise unwritable(path, err) from err
