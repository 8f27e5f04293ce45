"""List this machine's GPUs and the processes that use them, and check whether CUDA initializes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import Any, Sequence

from . import subprocess_tool
from .leases.store import user_name
from .untrusted_data import MALFORMED, AgentError, parse_json_object, require_integer

_TOOL_S = 30.0
_DIGITS = 19
_FORMAT = "--format=csv,noheader,nounits"
_CUDA_LIMIT_S = 40.0
"""Time limit of the check in seconds. Without persistence mode, eight GPUs take about 20 s."""
_FABRIC_MANAGER_S = 5.0
_CUDA_LIBRARY = "libcuda.so.1"
_CUDA_PROGRAM = """
import ctypes, json, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError as error:
    raise SystemExit("missing")
code = library.cuInit(0)
name = ctypes.c_char_p()
try:
    library.cuGetErrorName(code, ctypes.byref(name))
except AttributeError:
    pass
print(json.dumps({"code": code, "name": (name.value or b"").decode("ascii", "replace")}))
"""
_NOT_READY = 802
_CUDA_ERROR_NAMES = {_NOT_READY: "CUDA_ERROR_SYSTEM_NOT_READY"}
_FABRIC_MANAGER_VERSION = re.compile(r"version is\s*:\s*([0-9.]+)")


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
        exit_code, text = subprocess_tool.run_bounded(("nvidia-smi", query, _FORMAT), _TOOL_S)
    except OSError as error:
        raise AgentError(f"nvidia-smi cannot be started: {error.strerror}", code="no-gpu") from None
    if exit_code == subprocess_tool.TIMED_OUT:
        raise AgentError(f"nvidia-smi did not respond within {_TOOL_S:.0f} s", code="no-gpu")
    if exit_code:
        raise AgentError(f"nvidia-smi: {subprocess_tool.last_line(text) or f'exit code {exit_code}'}", code="no-gpu")
    return [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]


def check_cuda(root: str, driver: str) -> dict[str, Any]:
    """Return whether CUDA initializes: `ok`, `failed` or `unknown`, with the error code (or None) and the reason.

    Args:
        root: Prefix of system paths; empty except on simulated nodes without a separate file system.
        driver: Version of the driver.
    """
    own = f"{root}/usr/lib/{_CUDA_LIBRARY}"
    library = own if root and os.path.exists(own) else _CUDA_LIBRARY
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    argv = (sys.executable, "-I", "-S", "-c", _CUDA_PROGRAM, library)
    exit_code, text = subprocess_tool.run_bounded(argv, _CUDA_LIMIT_S, environment)
    if exit_code == subprocess_tool.TIMED_OUT:
        return _answer("failed", None, f"CUDA did not initialize within {_CUDA_LIMIT_S:.0f} s")
    if exit_code < 0:
        return _answer("failed", None, f"CUDA does not initialize: its library was killed by signal {-exit_code}")
    if text.strip() == "missing":
        return unknown_cuda(f"{_CUDA_LIBRARY} was not found")
    # The library may print lines of its own.
    line = subprocess_tool.last_line(text)
    try:
        result = parse_json_object(line.encode())
        return _initialized(require_integer(result["code"]), str(result["name"]), driver)
    except MALFORMED:
        return unknown_cuda(f"the check of {_CUDA_LIBRARY} failed: {line or f'exit code {exit_code}'}")


def _initialized(code: int, name: str, driver: str) -> dict[str, Any]:
    if code == 0:
        return _answer("ok", 0, "")
    name = name or _CUDA_ERROR_NAMES.get(code, "")
    reason = f"CUDA does not initialize (error {code}{f', {name}' if name else ''})"
    return _answer("failed", code, f"{reason}: {_fabric_manager(driver)}" if code == _NOT_READY else reason)


def unknown_cuda(reason: str) -> dict[str, Any]:
    """Return the result of a check that could not be made."""
    return _answer("unknown", None, reason)


def _answer(state: str, error: int | None, reason: str) -> dict[str, Any]:
    return {"state": state, "error": error, "reason": reason}


def _fabric_manager(driver: str) -> str:
    """Return what is wrong with Fabric Manager."""
    if shutil.which("nv-fabricmanager") is None:
        return "Fabric Manager is not installed"
    _, text = subprocess_tool.run_bounded(("nv-fabricmanager", "--version"), _FABRIC_MANAGER_S)
    found = _FABRIC_MANAGER_VERSION.search(text)
    if found is None:
        return "Fabric Manager does not work"
    if driver and found[1] != driver:
        return f"Fabric Manager {found[1]} does not match driver {driver}"
    return f"Fabric Manager {found[1]} is not running or not ready"
