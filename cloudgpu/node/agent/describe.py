"""`describe`: report a host's hardware and software for the inventory. Read-only."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from typing import Any, Callable

from . import probe
from .containers.engine_state import engine_state

_TOOL_S = 15.0
_VIRTUAL_PREFIXES = ("lo", "docker", "veth", "br-", "virbr", "cni", "flannel", "tun", "tap")


def verb(_: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the host's facts."""
    facts: list[dict[str, Any]] = []
    probe.verb({}, facts.append)
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
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_TOOL_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""
