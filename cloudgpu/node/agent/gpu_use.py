"""Which GPUs this machine has, and which of them processes are on."""

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
    """A process that computes on a GPU."""

    gpu: int
    pid: int
    user: str
    mib: int | None

    @property
    def description(self) -> str:
        """`GPU 2: process 4711 of bob`."""
        return f"GPU {self.gpu}: process {self.pid} of {self.user}"


def gpu_ids() -> dict[str, int]:
    """Identity -> index of every GPU.

    Raises:
        AgentError: There is no driver, or it does not answer.
    """
    rows = _query("--query-gpu=uuid,index")
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and _is_number(row[1])}


def processes(ids: dict[str, int]) -> list[GpuProcess]:
    """Every process on a GPU; by whom, as far as this user may see.

    Raises:
        AgentError: The driver does not answer.
    """
    rows = _query("--query-compute-apps=gpu_uuid,pid,used_memory")
    return [_process(row, ids) for row in rows if len(row) > 2 and row[0] in ids and _is_number(row[1])]  # noqa: PLR2004


def _process(row: Sequence[str], ids: dict[str, int]) -> GpuProcess:
    return GpuProcess(ids[row[0]], int(row[1]), _owner(int(row[1])), int(row[2]) if _is_number(row[2]) else None)


def _is_number(word: str) -> bool:
    """`str.isdigit` also takes figures that `int` does not."""
    return word.isascii() and word.isdigit() and len(word) < _DIGITS


def _owner(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "somebody"  # of another container, or gone already


def _query(query: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        raise AgentError("there is no nvidia-smi on this host", code="no-gpu", hint="is NVIDIA's driver installed?")
    try:
        done = subprocess.run(
            ["nvidia-smi", query, _FORMAT], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_TOOL_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AgentError(f"nvidia-smi gave no answer within {_TOOL_S:.0f} s", code="no-gpu") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise AgentError(f"nvidia-smi: {said[-1] if said else done.returncode}", code="no-gpu")
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
