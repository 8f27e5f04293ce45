"""List this machine's GPUs and the processes that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Sequence

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
    """Return a mapping from each GPU's UUID to its index.

    Raises:
        AgentError: `nvidia-smi` is missing, fails or does not respond.
    """
    rows = _query("--query-gpu=uuid,index")
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and _is_number(row[1])}


def gpu_processes(ids: dict[str, int]) -> list[GpuProcess]:
    """Return every compute process on a GPU. If this user may not see the owner, `user` is `another user`.

    Raises:
        AgentError: `nvidia-smi` is missing, fails or does not respond.
    """
    rows = _query("--query-compute-apps=gpu_uuid,pid,used_memory")
    return [_process(row, ids) for row in rows if len(row) > 2 and row[0] in ids and _is_number(row[1])]  # noqa: PLR2004


def _process(row: Sequence[str], ids: dict[str, int]) -> GpuProcess:
    return GpuProcess(ids[row[0]], int(row[1]), _owner(int(row[1])), int(row[2]) if _is_number(row[2]) else None)


def _is_number(word: str) -> bool:
    """Return True for ASCII digits only: `str.isdigit` also accepts digits that `int` rejects."""
    return word.isascii() and word.isdigit() and len(word) < _DIGITS


def _owner(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "another user"  # in another container, or the process has just exited


def _query(query: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        raise AgentError("nvidia-smi is not installed on this host", code="no-gpu", hint="install the NVIDIA driver")
    try:
        done = subprocess.run(
            ["nvidia-smi", query, _FORMAT], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_TOOL_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AgentError(f"nvidia-smi did not respond within {_TOOL_S:.0f} s", code="no-gpu") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise AgentError(f"nvidia-smi: {lines[-1] if lines else done.returncode}", code="no-gpu")
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
