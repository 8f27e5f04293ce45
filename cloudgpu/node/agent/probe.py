"""`probe`: report the facts that the health check evaluates."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from .untrusted_data import MALFORMED, parse_json_object, require_integer, require_number, text
from .utc import now

_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,ecc.errors.uncorrected.volatile.total,driver_version",
    "--format=csv,noheader,nounits",
)
_TOOL_S = 30.0
"""Time limit for a tool, in seconds. With a broken driver, tools hang, but the probe must still respond."""
_FI_INFO = ("/opt/amazon/efa/bin/fi_info", "fi_info")
_MIB = 1 << 20


def verb(_: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the node's facts. The response reports broken hardware; the probe itself does not fail."""
    gpus, gpu_error = _gpus()
    emit(
        {
            "python": sys.version.split()[0],
            "hostname": socket.gethostname(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
            "disk_free_mib": shutil.disk_usage(os.path.expanduser("~")).free // _MIB,
            "gpus": gpus,
            "gpu_error": gpu_error,
            "efa": _efa(),
            "utc": now(),
            **bootstrap_state(_root()),
        }
    )


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Parse the CSV output of `nvidia-smi`.

    Raises:
        ValueError: The text is not CSV, for example an error message.
    """
    gpus = []
    for line in text.splitlines():
        if line.strip():
            # The name may contain commas; the three fields after it cannot.
            name, memory, ecc, driver = line.rsplit(",", 3)
            errors = int(ecc) if ecc.strip().isdecimal() else None
            size = require_integer(int(memory))
            gpus.append({"name": name.strip(), "memory_mib": size, "ecc_errors": errors, "driver": driver.strip()})
    return gpus


def parse_fi_info(text: str) -> list[str]:
    """Return the domains that `fi_info -p efa` lists, in order, without duplicates."""
    domains = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.strip().startswith("domain:")]
    return list(dict.fromkeys(domains))


def bootstrap_state(root: str) -> dict[str, Any]:
    """Return the bootstrap state: `done`, `running`, `rebooting`, `failed` (with step and reason) or `none`.

    A node accepts SSH before cloud-init reaches the bootstrap, so an unfinished cloud-init is also `running`.
    `bootstrap_step_s` is the number of seconds since the current step began, or 0 unless the bootstrap is running;
    `bootstrap_steps` lists the result and duration of each step.
    """
    path = Path(f"{root}/var/lib/cloudgpu/bootstrap.json")
    instance = Path(f"{root}/var/lib/cloud/instance")
    if not path.exists() and instance.exists() and not (instance / "boot-finished").exists():
        return _bootstrap_facts("running", "waiting for cloud-init")
    try:
        return _stored(parse_json_object(path.read_bytes()))
    except FileNotFoundError:
        return _bootstrap_facts("none")
    except (OSError, *MALFORMED) as error:
        return _bootstrap_facts("failed", error=f"{path}: {error}")


def _stored(stored: dict[str, Any]) -> dict[str, Any]:
    facts = _bootstrap_facts(
        *(text(stored.get(name, default)) for name, default in (("state", "none"), ("step", ""), ("error", "")))
    )
    # For display only, so a malformed step list is omitted instead of failing the probe.
    with suppress(*MALFORMED):
        facts["bootstrap_steps"] = [_step(step) for step in stored.get("steps", [])]
    with suppress(*MALFORMED):
        if facts["bootstrap"] == "running":
            facts["bootstrap_step_s"] = max(0, int(time.time()) - require_integer(stored["began_epoch_s"]))
    return facts


def _step(step: dict[str, Any]) -> dict[str, Any]:
    words = {name: value for name, value in step.items() if isinstance(value, str)}
    return {**words, "seconds": int(require_number(step.get("seconds") or 0))}


def _bootstrap_facts(state: str, step: str = "", error: str = "") -> dict[str, Any]:
    named = {"bootstrap": state, "bootstrap_step": step, "bootstrap_error": error}
    return {**named, "bootstrap_step_s": 0, "bootstrap_steps": []}


def _gpus() -> tuple[list[dict[str, Any]], str]:
    if shutil.which(_NVIDIA_SMI[0]) is None:
        return [], ""
    exit_code, text = _run(_NVIDIA_SMI)
    if exit_code:
        return [], f"nvidia-smi: {_last_line(text) or f'exit code {exit_code}'}"
    try:
        return parse_gpus(text), ""
    except ValueError:
        return [], f"nvidia-smi: {_last_line(text)}"


def _efa() -> list[str]:
    """Return the EFA devices that the kernel lists, or, if there are none, those that libfabric lists."""
    devices = []
    for device in sorted(Path(f"{_root()}/sys/class/infiniband").glob("*")):
        driver = device / "device" / "driver"
        if driver.exists() and driver.resolve().name == "efa":
            devices.append(device.name)
    tool = next((tool for tool in _FI_INFO if shutil.which(tool)), None)
    if devices or tool is None:
        return devices
    exit_code, text = _run((tool, "-p", "efa", "-t", "FI_EP_RDM"))
    return [] if exit_code else parse_fi_info(text)


def _run(argv: tuple[str, ...]) -> tuple[int, str]:
    """Return a tool's exit code and output. A tool that hangs is killed."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as tool:
        try:
            output, _ = tool.communicate(timeout=_TOOL_S)
        except subprocess.TimeoutExpired:
            tool.kill()
            return 1, f"no response within {_TOOL_S:.0f} s"
    return tool.returncode, output.decode("utf-8", "replace")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def _root() -> str:
    """Return the prefix for system paths; empty except on simulated nodes without a separate file system."""
    return os.environ.get("CLOUDGPU_NODE_ROOT", "")
