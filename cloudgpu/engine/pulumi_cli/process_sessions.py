"""Find processes that a CLI left behind, by its session or by its working directory."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from cloudgpu.engine.plugin.server import ENDS_WITH
from cloudgpu.engine.processes import process_start

_SESSION = 3
"""Index among the fields of /proc/PID/stat that follow the program's name: state, parent, group, session."""


def end_session(leader: int) -> None:
    """Kill the children of a dead CLI. Its language host would notice only within five minutes.

    The kernel gives the number of a session to no other process while one of its members lives. Where there is no
    /proc, they end by themselves.
    """
    if process_start(leader):
        return
    for process in _processes():
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ours = ENDS_WITH.encode() in (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended, or is another user's
        if ours and int(fields[_SESSION]) == leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def cli_in(folder: Path) -> tuple[int, str] | None:
    """Return process id and start of a CLI whose working directory is this folder; None where there is none."""
    for process in _processes():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            works_here = (process / "cwd").samefile(folder)
        except OSError:
            continue
        if works_here and any(Path(os.fsdecode(word)).name == "pulumi" for word in words[:2]):
            return int(process.name), process_start(int(process.name))
    return None


def _processes() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")
