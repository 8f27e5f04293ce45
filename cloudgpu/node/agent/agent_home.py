"""Directories for data that outlives a run. They are in the same directory as the agent's file."""

from __future__ import annotations

import os
import sys


def agent_folder(name: str) -> str:
    """Return the path of a directory next to the agent's file, such as `~/.cloudgpu/data`. It need not exist yet."""
    return os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
