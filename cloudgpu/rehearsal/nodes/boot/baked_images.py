"""What machine images that were made of nodes have installed, as far as the nodes' stand-ins remember it."""

import json
from pathlib import Path

from cloudgpu import files
from cloudgpu.decoding import decoded
from cloudgpu.rehearsal.nodes import record


class Images:
    """Those of one cloud, in one file."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet.

        Args:
            path: The file; it need not be there.
        """
        self._path = path

    def installed(self, image_id: str) -> tuple[str, ...]:
        """Packages that a node of this image begins with; none for an image that was not made of a node."""
        return tuple(self._read().get(image_id, ()))

    def keep(self, image_id: str, installed: tuple[str, ...]) -> None:
        """Note what an image has.

        Raises:
            OSError: It cannot be written.
        """
        record.write_private(self._path, json.dumps(self._read() | {image_id: list(installed)}))

    def _read(self) -> dict[str, list[str]]:
        try:
            return decoded(dict[str, list[str]], files.read_json(self._path))
        except (OSError, ValueError):
            return {}
