"""Packages installed in images that were created from nodes."""

import json
from pathlib import Path

from cloudgpu import files
from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.nodes import record


class Images:
    """The packages installed in a rehearsal cloud's images, stored in one file."""

    def __init__(self, path: Path) -> None:
        """Create the store without reading the file.

        Args:
            path: Path of the file, which need not exist.
        """
        self._path = path

    def installed(self, image_id: str) -> tuple[str, ...]:
        """Return the packages installed in an image; empty if the image was not created from a node."""
        return tuple(self._read().get(image_id, ()))

    def keep(self, image_id: str, installed: tuple[str, ...]) -> None:
        """Store the packages of an image.

        Raises:
            OSError: The file cannot be written.
        """
        record.write_private(self._path, json.dumps(self._read() | {image_id: list(installed)}))

    def _read(self) -> dict[str, list[str]]:
        try:
            return decode_as(dict[str, list[str]], files.read_json(self._path))
        except (OSError, ValueError):
            return {}
