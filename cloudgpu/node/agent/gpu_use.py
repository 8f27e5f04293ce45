"""List this machine's GPUs and the processes that use them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Sequence

from . import bounded_tool
from .errors import AgentError
from .leases.store import user_name

_TOOL_S = 30.0
_DIGITS = 19
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True)
class GpuProcess:
    """A compute process on a GPU."""

    gpu: int
    pid: int
    user: str
    mib: int | None

    @property
    def description(self) -> str:
        """Description for messages: `GPU 2: process 4711 of bob`."""
        return f"GPU {self.gpu}: process {self.pid} of {self.user}"


def gpu_ids() -> dict[str, int]:
    """Return a mapping from each GPU's UUID to its index."""
    rows = _query("--query-gpu=uuid,index")
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and _is_number(row[1])}


def gpu_processes(ids: dict[str, int]) -> list[GpuProcess]:
    """Return the compute processes on these GPUs. `user` is `another user` if the owner cannot be determined."""
    rows = _query("--query-compute-apps=gpu_uuid,pid,used_memory")
    return [_process(row, ids) for row in rows if len(row) > 2 and row[0] in ids and _is_number(row[1])]  # noqa: PLR2004


def _process(row: Sequence[str], ids: dict[str, int]) -> GpuProcess:
    return GpuProcess(ids[row[0]], int(row[1]), _owner(int(row[1])), int(row[2]) if _is_number(row[2]) else None)


def _is_number(word: str) -> bool:
    """Return True for fewer than 19 ASCII digits. `str.isdigit` alone also accepts characters that `int` rejects."""
    return word.isascii() and word.isdigit() and len(word) < _DIGITS


def _owner(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "another user"  # the process is in another container or has just exited


def _query(query: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        raise AgentError("nvidia-smi is not installed on this host", code="no-gpu", hint="install the NVIDIA driver")
    try:
        exit_code, text = bounded_tool.run(("nvidia-smi", query, _FORMAT), _TOOL_S)
    except OSError as error:
        raise AgentError(f"nvidia-smi cannot be started: {error.strerror}", code="no-gpu") from None
    if exit_code == bounded_tool.TIMED_OUT:
        raise AgentError(f"nvidia-smi did not respond within {_TOOL_S:.0f} s", code="no-gpu")
    if exit_code:
        raise AgentError(f"nvidia-smi: {bounded_tool.last_line(text) or f'exit code {exit_code}'}", code="no-gpu")
    return [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
