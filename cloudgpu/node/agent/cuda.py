"""Check whether CUDA initializes on this node, with the driver's own library and without any framework.

On nodes with NVSwitch, `nvidia-smi` works without Fabric Manager, but every CUDA program fails with error 802. Fabric
Manager must have exactly the driver's version (NVIDIA Fabric Manager user guide, "Installing Fabric Manager").
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from typing import Any

from . import bounded_tool
from .untrusted_data import MALFORMED, parse_json_object, require_integer

_LIMIT_S = 40.0
"""Time limit of the check in seconds. Without persistence mode, eight GPUs take about 20 s."""
_TOOL_S = 5.0
_LIBRARY = "libcuda.so.1"
_PROGRAM = """
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
_NAMES = {_NOT_READY: "CUDA_ERROR_SYSTEM_NOT_READY"}
_VERSION = re.compile(r"version is\s*:\s*([0-9.]+)")


def check(root: str, driver: str) -> dict[str, Any]:
    """Return whether CUDA initializes: `ok`, `failed` or `unknown`, with the error code (or None) and the reason.

    Args:
        root: Prefix of system paths; empty except on simulated nodes without a separate file system.
        driver: Version of the driver.
    """
    own = f"{root}/usr/lib/{_LIBRARY}"
    library = own if root and os.path.exists(own) else _LIBRARY
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    argv = (sys.executable, "-I", "-S", "-c", _PROGRAM, library)
    exit_code, text = bounded_tool.run(argv, _LIMIT_S, environment)
    if exit_code == bounded_tool.TIMED_OUT:
        return _answer("failed", None, f"CUDA did not initialize within {_LIMIT_S:.0f} s")
    if exit_code < 0:
        return _answer("failed", None, f"CUDA does not initialize: its library was killed by signal {-exit_code}")
    if text.strip() == "missing":
        return unknown(f"{_LIBRARY} was not found")
    # The library may print lines of its own.
    line = bounded_tool.last_line(text)
    try:
        result = parse_json_object(line.encode())
        return _initialized(require_integer(result["code"]), str(result["name"]), driver)
    except MALFORMED:
        return unknown(f"the check of {_LIBRARY} failed: {line or f'exit code {exit_code}'}")


def _initialized(code: int, name: str, driver: str) -> dict[str, Any]:
    if code == 0:
        return _answer("ok", 0, "")
    name = name or _NAMES.get(code, "")
    reason = f"CUDA does not initialize (error {code}{f', {name}' if name else ''})"
    return _answer("failed", code, f"{reason}: {_fabric_manager(driver)}" if code == _NOT_READY else reason)


def unknown(reason: str) -> dict[str, Any]:
    """Return the result of a check that could not be made."""
    return _answer("unknown", None, reason)


def _answer(state: str, error: int | None, reason: str) -> dict[str, Any]:
    return {"state": state, "error": error, "reason": reason}


def _fabric_manager(driver: str) -> str:
    """Return what is wrong with Fabric Manager."""
    if shutil.which("nv-fabricmanager") is None:
        return "Fabric Manager is not installed"
    _, text = bounded_tool.run(("nv-fabricmanager", "--version"), _TOOL_S)
    found = _VERSION.search(text)
    if found is None:
        return "Fabric Manager does not work"
    if driver and found[1] != driver:
        return f"Fabric Manager {found[1]} does not match driver {driver}"
    return f"Fabric Manager {found[1]} is not running or not ready"
