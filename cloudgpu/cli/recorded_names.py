"""Names in the state home, for shell completion. The records themselves are not read."""

import os
from pathlib import Path

from cloudgpu.settings import load


def recorded_names(folder: str, file: str) -> list[str]:
    """Return the names of the folders of a kind, such as `clusters`, that contain a record with this file name."""
    home = load(flags={}, environ=os.environ, cwd=Path.cwd()).home
    return [path.parent.name for path in (home / folder).glob(f"*/{file}")]
