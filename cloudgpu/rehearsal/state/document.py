"""JSON files of the rehearsal cloud, each with the number of its format.

Version 0.1.0 wrote no number, so a file without one has format 1. A file with a higher number than this version knows
was written by a newer version. It is rejected, not treated as damaged, because damaged files are replaced or deleted.

    file                        written by      read by
    endpoint.json               server          commands, the next server
    keys.json                   server, command server, commands
    market.json, time.json      server          the next server
    failure.json                server          the command that started it
    nodes/host.json             node host       the next node host
    nodes/images.json           node host       node host
    nodes/instances/ID/record.json  node host   the next node host

All other state (client tokens, schedules, resources) is in the snapshots of `store.py`, whose first line names their
format. Faults and conditions are only in memory, except for the limits in market.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cloudgpu import files
from cloudgpu.errors import NewerFormatError

_KEY: Final = "format"
_FIRST: Final = 1
_LARGEST: Final = 1_000_000
"""A file with a higher number is damaged: no version writes one, and it could be too long to show in a message."""


@dataclass(frozen=True)
class DocumentFormat:
    """The format of one kind of file: its name in messages, and the highest number that this version reads."""

    name: str
    number: int = _FIRST

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Return the contents of a file with these values and the current format number."""
        return json.dumps({_KEY: self.number, **values}).encode()

    def read(self, path: Path, limit: int = files.SETTINGS_BYTES) -> dict[str, Any]:
        """Read a file of at most `limit` bytes. Return its values without the format number.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is damaged.
            NewerFormatError: A newer version wrote the file.
        """
        values = files.read_json(path, limit)
        if not isinstance(values, dict):
            message = f"expected a mapping, got {type(values).__name__}"
            raise ValueError(message)  # noqa: TRY004 - callers treat both as damage
        number = values.pop(_KEY, _FIRST)
        if not isinstance(number, int) or isinstance(number, bool) or not _FIRST <= number <= _LARGEST:
            message = f"the format is not a whole number from {_FIRST} to {_LARGEST}"
            raise ValueError(message)
        if number > self.number:
            raise NewerFormatError(
                f"{path} ({self.name}) has format {number}, which a newer version of cloudgpu wrote; "
                f"this version reads up to format {self.number}",
                hint="upgrade cloudgpu to the version that wrote it",
            )
        return values
