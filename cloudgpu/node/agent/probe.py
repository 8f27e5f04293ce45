"""`probe` reports the facts that the health check evaluates; `describe` reports a host for the inventory. Read-only."""

from __future__ import annotations

import grp
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from . import subprocess_tool
from .containers.docker_api import engine_state
from .files import now
from .gpus import check_cuda, unknown_cuda
from .untrusted_data import MALFORMED, parse_json_object, require_integer, require_number, text

_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,ecc.errors.uncorrected.volatile.total,driver_version",
    "--format=csv,noheader,nounits",
)
_TOOL_S = 30.0
"""Time limit for a tool, in seconds. The probe must respond even if a broken driver makes a tool hang."""
_FI_INFO = ("/opt/amazon/efa/bin/fi_info", "fi_info")
_MIB = 1 << 20
_DESCRIBE_TOOL_S = 15.0
_VIRTUAL_PREFIXES = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap")


def probe_node(_: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the node's facts. Broken hardware is one of these facts and does not make the probe fail.

    As long as the bootstrap runs, the hardware is left alone: `nvidia-smi` could load a half-installed driver.
    """
    bootstrap = bootstrap_state(_root())
    unfinished = bootstrap["bootstrap"] in ("running", "rebooting")
    gpus, gpu_error = ([], "") if unfinished else _gpus()
    emit(
        {
            "python": sys.version.split()[0],
            "hostname": socket.gethostname(),
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MIB,
            "disk_free_mib": shutil.disk_usage(os.path.expanduser("~")).free // _MIB,
            "gpus": gpus,
            "gpu_error": gpu_error,
            "cuda": _cuda(gpus, bootstrap["bootstrap"]),
            "efa": [] if unfinished else _efa(),
            "new_groups": new_groups(),
            "utc": now(),
            **bootstrap,
        }
    )


def new_groups() -> list[str]:
    """Return the groups of the login user that this process lacks, because the user was added to them after the login.

    The result is empty for a user that the user database does not list.
    """
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return []
    missing = set(os.getgrouplist(user.pw_name, user.pw_gid)) - {*os.getgroups(), os.getgid()}
    return sorted(_group_name(group_id) for group_id in missing)


def _group_name(group_id: int) -> str:
    try:
        return grp.getgrgid(group_id).gr_name
    except KeyError:
        return str(group_id)


def parse_gpus(text: str) -> list[dict[str, Any]]:
    """Parse the CSV output of `nvidia-smi`."""
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

    A node accepts SSH before cloud-init starts the bootstrap, so the state is also `running` while the node waits for
    cloud-init. `bootstrap_step_s` is the number of seconds since the current step began, or 0 if the bootstrap is not
    running. `bootstrap_steps` lists the result and duration of each step.
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
    # The steps are only displayed, so a malformed list is omitted and does not make the probe fail.
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
    exit_code, text = subprocess_tool.run_bounded(_NVIDIA_SMI, _TOOL_S)
    if exit_code:
        return [], f"nvidia-smi: {subprocess_tool.last_line(text) or f'exit code {exit_code}'}"
    try:
        return parse_gpus(text), ""
    except ValueError:
        return [], f"nvidia-smi: {subprocess_tool.last_line(text)}"


def _cuda(gpus: list[dict[str, Any]], bootstrap: str) -> dict[str, Any]:
    if not gpus:
        return unknown_cuda("nvidia-smi lists no GPU")
    if bootstrap in ("running", "rebooting"):
        return unknown_cuda("the bootstrap is running")
    return check_cuda(_root(), gpus[0]["driver"])


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
    exit_code, text = subprocess_tool.run_bounded((tool, "-p", "efa", "-t", "FI_EP_RDM"), _TOOL_S)
    return [] if exit_code else parse_fi_info(text)


def _root() -> str:
    """Return the prefix for system paths; empty except on simulated nodes without a separate file system."""
    return os.environ.get("CLOUDGPU_NODE_ROOT", "")


def describe_host(_: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the host's facts."""
    facts: list[dict[str, Any]] = []
    probe_node({}, facts.append)
    copied = ("python", "hostname", "cpus", "memory_mib", "disk_free_mib", "gpus", "gpu_error", "cuda", "utc")
    emit(
        {
            **{name: facts[0][name] for name in copied},
            "addresses": _addresses(),
            "docker": _output_of(["docker", "--version"]),
            "engine": engine_state(gpus=bool(facts[0]["gpus"])),
            "container_toolkit": any(shutil.which(tool) for tool in ("nvidia-ctk", "nvidia-container-runtime")),
            "venv": importlib.util.find_spec("ensurepip") is not None,
            "uv": shutil.which("uv") is not None,
            "packages": next((tool for tool in ("apt-get", "dnf", "yum", "zypper") if shutil.which(tool)), ""),
            "root": os.getuid() == 0 or _output_of(["sudo", "-n", "id", "-u"]) == "0",
        }
    )


def _addresses() -> list[dict[str, str]]:
    """Return the interfaces and their IPv4 addresses, excluding container and tunnel interfaces."""
    addresses = []
    for line in _output_of(["ip", "-o", "-4", "addr", "show"]).splitlines():
        words = line.split()
        if len(words) > 3 and words[2] == "inet" and not words[1].startswith(_VIRTUAL_PREFIXES):  # noqa: PLR2004
            addresses.append({"interface": words[1], "address": words[3].partition("/")[0]})
    return addresses


def _output_of(argv: list[str]) -> str:
    """Return a tool's standard output, or an empty string if the tool is missing, fails or hangs."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_DESCRIBE_TOOL_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
