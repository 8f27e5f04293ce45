"""Where the agent keeps what outlives a run: beside its own file."""

from __future__ import annotations

import os
import sys


def own_folder(name: str) -> str:
    """A folder of this name beside the agent, `~/.cloudgpu/NAME`; it may not be there yet."""
    return os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
