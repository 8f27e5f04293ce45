"""Read and write the rehearsal cloud's JSON files, each of which contains the number of its format.

Version 0.1.0 wrote no format number, so a file without a number has format 1. A file with a higher number than this
version knows was written by a newer version. Such a file is rejected instead of being treated as damaged, because
damaged files are replaced or deleted.

    file                        written by      read by
    endpoint.json               server          commands, the next server
    keys.json                   server, command server, commands
    market.json, time.json      server          the next server
    failure.json                server          the command that started the server
    ended.json                  server, reset   commands, the next server
    nodes/host.json             node host       the next node host
    nodes/images.json           node host       node host
    nodes/instances/ID/record.json  node host   the next node host

All other state (client tokens, schedules, resources) is in the snapshots of `store.py`, whose first line identifies
their format. Faults and conditions are kept only in memory, except for the limits in market.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu import files
from cloudgpu.state.file_format import FIRST, FORMAT, stored_format


@dataclass(frozen=True)
class DocumentFormat:
    """The format of one kind of file: the kind's name in messages, and the newest number that this version reads."""

    name: str
    number: int = FIRST

    def encode(self, values: Mapping[str, object]) -> bytes:
        """Return the contents of a file with these values and the current format number."""
        return json.dumps({FORMAT: self.number, **values}).encode()

    def read(self, path: Path, limit: int = files.SETTINGS_BYTES) -> dict[str, Any]:
        """Read a file of at most `limit` bytes. Return its values without the format number."""
        values = files.read_json(path, limit)
        if not isinstance(values, dict):
            message = f"expected a mapping, got {type(values).__name__}"
            raise ValueError(message)  # noqa: TRY004 - callers treat both as damage
        stored_format(path, self.name, values, self.number)
        values.pop(FORMAT, None)
        return values
