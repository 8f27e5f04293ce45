"""Packages installed in images that were created from nodes."""

from pathlib import Path
from typing import Final

from cloudgpu.decoding import decode_as
from cloudgpu.files import RECORD_BYTES
from cloudgpu.rehearsal.nodes import record
from cloudgpu.rehearsal.state.document import DocumentFormat

_FORMAT: Final = DocumentFormat("image package list")
"""In the file, the format number is a key beside the image IDs, which all begin with `ami-`."""


class Images:
    """The packages installed in a rehearsal cloud's images, stored in one file."""

    def __init__(self, path: Path) -> None:
        """Create the store without reading the file.

        Args:
            path: Path of the file, which need not exist.
        """
        self._path = path

    def installed(self, image_id: str) -> tuple[str, ...]:
        """Return the packages installed in an image, or an empty tuple if the image was not created from a node."""
        return tuple(self._read().get(image_id, ()))

    def keep(self, image_id: str, installed: tuple[str, ...]) -> None:
        """Store the list of packages installed in an image."""
        record.write_private(self._path, _FORMAT.encode(self._read() | {image_id: list(installed)}))

    def _read(self) -> dict[str, list[str]]:
        try:
            return decode_as(dict[str, list[str]], _FORMAT.read(self._path, RECORD_BYTES))
        except (OSError, ValueError):
            return {}
