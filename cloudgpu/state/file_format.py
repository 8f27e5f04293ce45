"""The format number in a JSON file, and the error for a file that a newer version wrote."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cloudgpu import bounds
from cloudgpu.errors import NewerFormatError

FORMAT: Final = "format"
"""Field that contains the number of the file's format."""
FIRST: Final = 1
"""Format of files without the field `format`, which versions of cloudgpu wrote before the field existed."""
UPGRADE_HINT: Final = "a newer version wrote the file: upgrade cloudgpu, for example with `pip install -U cloudgpu`"


def stored_format(
    path: Path, name: str, content: Mapping[str, object], newest: int, *, hint: str = UPGRADE_HINT
) -> int:
    """Return the format number of a file's content.

    Args:
        path: The file.
        name: Description of the file for the message, such as `cluster record`.
        content: The parsed file.
        newest: The newest format that this version of cloudgpu reads.
        hint: Hint of the NewerFormatError.
    """
    number = bounds.checked_count(content.get(FORMAT, FIRST), FIRST)
    if number > newest:
        message = f"{path} ({name}) has format {number}, but this version of cloudgpu reads formats up to {newest}"
        raise NewerFormatError(message, hint=hint)
    return number
