"""The JSON files of the state home, their format numbers and migrations, and the validation of their values.

Every file has the number of its format in the field `format`. A file without it has format 1, as written by
versions before the field existed. Files in old formats are migrated when they are read. Files in a newer format are
rejected, because this version could misread them, or write them back without the fields that it does not know.

Files are decoded like messages from nodes, by `cloudgpu.decoding`, so a field has the same bounds in a file as in a
message.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from cloudgpu import bounds, files
from cloudgpu.decoding import MALFORMED, decode_as, describe_error, unexpected
from cloudgpu.errors import NewerFormatError
from cloudgpu.paths import unwritable_error

FORMAT: Final = "format"
"""Field that contains the number of the file's format."""
FIRST: Final = 1
"""Format of files without the field `format`, which versions of cloudgpu wrote before the field existed."""
UPGRADE_HINT: Final = "a newer version wrote the file: upgrade cloudgpu, for example with `pip install -U cloudgpu`"
T = TypeVar("T")
Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""Function that converts the content of a file from one format to the next."""


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


class StateFile(Generic[T]):
    """A kind of file in the state home."""

    def __init__(
        self,
        name: str,
        kind: type[T],
        *,
        migrations: tuple[Migration, ...] = (),
        decode: Callable[[dict[str, Any]], T] | None = None,
        encode: Callable[[T], Mapping[str, Any]] | None = None,
    ) -> None:
        """Describe a kind of file.

        Args:
            name: Description of the file for messages, such as `cluster record`.
            kind: Type of the content.
            migrations: The function at index N - 1 converts format N to format N + 1.
            decode: Parses content in the current format. Default: `decode_as`, by the annotations of `kind`.
            encode: Converts a value to content in the current format. Default: the fields of the dataclass.
        """
        self.name = name
        self.format = len(migrations) + 1
        self._migrations = migrations
        self._decode = decode or partial(decode_as, kind)
        self._encode = encode or _fields

    def read(self, path: Path) -> T:
        """Read a file."""
        try:
            return self._decode(self._current(files.read_json(path), path))
        except MALFORMED as err:
            raise ValueError(describe_error(err)) from err

    def write(self, path: Path, value: T) -> None:
        """Replace a file atomically and durably."""
        content = {FORMAT: self.format, **self._encode(value)}
        write_durably(path, json.dumps(content, default=_plain, indent=1) + "\n")

    def _current(self, content: object, path: Path) -> dict[str, Any]:
        """Return the content of a file in the current format."""
        if not isinstance(content, dict):
            raise unexpected(content, "a mapping")
        stored = stored_format(path, self.name, content, self.format)
        for migration in self._migrations[stored - 1 :]:
            content = migration(content)
        return content


def documents_in(folder: Path, name: str) -> list[Path]:
    """Return the path of the file with this name in every subdirectory of a directory, sorted by subdirectory.

    The files may not exist: callers must report a file in an unreadable subdirectory as damaged, so this function does
    not skip it. `Path.glob` would skip it, and would also skip all subdirectories after the unreadable one.
    """
    try:
        return sorted(entry / name for entry in folder.iterdir())
    except FileNotFoundError:
        return []


def documents_if_readable(folder: Path, name: str) -> list[Path]:
    """Return the same paths as `documents_in`, or an empty list if the directory cannot be read."""
    try:
        return documents_in(folder, name)
    except OSError:
        return []


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically and durably: the new content survives a power failure."""
    try:
        files.make_private_directory(path.parent)
        files.replace(path, text.encode())
    except OSError as err:
        raise unwritable_error(path, err) from err


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    return asdict(value)


def _plain(value: object) -> object:
    if isinstance(value, date | datetime):
        return value.isoformat()
    message = f"{type(value).__name__} cannot be stored in a state file"
    raise TypeError(message)
