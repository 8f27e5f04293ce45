"""Run a tool with a time limit that also holds if the tool cannot be killed, because it waits for a broken driver."""

from __future__ import annotations

import subprocess
import threading
from typing import Mapping, Sequence

TIMED_OUT = 124
"""Exit code of a tool that did not respond in time."""
REAPER = "cloudgpu-reaper"
"""Name of the threads that wait for tools that could not be killed."""
_KILL_S = 2.0
"""Seconds to wait for a killed tool. In an uninterruptible system call, it only exits when the call returns."""


def run(argv: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return a tool's exit code and output. Kill a tool that hangs, and return `TIMED_OUT` for it."""
    tool = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if environment is None else dict(environment),
    )
    try:
        output, _ = tool.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        tool.kill()
        try:
            tool.communicate(timeout=_KILL_S)
        except subprocess.TimeoutExpired:
            if tool.stdout is not None:
                tool.stdout.close()
            # A thread waits for the tool, so that this process does not. It ends with the tool, or with this process.
            threading.Thread(target=tool.wait, name=REAPER, daemon=True).start()
        return TIMED_OUT, f"no response within {limit_s:.0f} s"
    return tool.returncode, output.decode("utf-8", "replace")


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
