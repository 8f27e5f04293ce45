"""Directories next to the agent's file, for data that outlives a run."""

from __future__ import annotations

import os
import sys


def agent_folder(name: str) -> str:
    """Return the path of `~/.cloudgpu/NAME`. The directory may not exist yet."""
    return os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), name)
