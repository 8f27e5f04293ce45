"""Ask this host's Docker engine whether it can run containers with GPUs, before anything is leased."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import subprocess
from typing import Any

from ..errors import AgentError
from ..untrusted_data import MALFORMED, text
from .docker_api import DockerApi, check_engine, find_docker_endpoint

_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit", "nvidia-ctk")
_CLIENT_S = 10.0
_ANSWER_S = 10.0
"""Time limit for the engine. A hung engine must not delay a plan for long."""
_UNIX = "unix://"


def engine_state(*, gpus: bool) -> dict[str, Any]:
    """Return the engine's version and properties, or as `problem` and `hint` why it cannot run containers.

    `gpus` is True if the host has GPUs, which a container must be able to use.
    """
    state: dict[str, Any] = {"version": "", "rootless": False, "podman": False, "problem": "", "hint": ""}
    try:
        endpoint = find_docker_endpoint()
        state["podman"] = _is_podman(endpoint.docker)
        if _gets_permission_at_login(endpoint.host[len(_UNIX) :]):
            return state  # the agent restarts itself with the group when it runs a container
        info = check_engine(DockerApi(endpoint), timeout_s=_ANSWER_S)
        state["version"] = text(info["Version"])
        state["rootless"] = any("rootless" in str(option) for option in info.get("SecurityOptions") or ())
        if gpus and not has_gpu_hook() and "nvidia" not in (info.get("Runtimes") or {}):
            state["problem"] = "Docker cannot use the GPUs: nvidia-container-toolkit is not installed"
            state["hint"] = "cloudgpu hosts prepare --install container-toolkit"
    except AgentError as error:
        podman = state["podman"] and "no Docker engine responds" in error.message
        state["problem"] = error.message
        state["hint"] = "`docker` is Podman here: enable its socket, or install Docker" if podman else error.hint
    except MALFORMED as error:
        state["problem"] = f"unexpected response from the Docker engine: {error}"
    return state


def has_gpu_hook() -> bool:
    """Return True if a tool is installed through which Docker's `--gpus` gives a container GPUs."""
    return any(shutil.which(name) for name in _HOOKS)


def _is_podman(docker: str) -> bool:
    try:
        shown = subprocess.run(
            [docker, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=_CLIENT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"podman" in shown.stdout.lower()


def _gets_permission_at_login(path: str) -> bool:
    """Return True if the user may not use the socket, but is a member of its group, which this session lacks."""
    if not os.path.exists(path) or os.access(path, os.R_OK | os.W_OK) or shutil.which("sg") is None:
        return False
    try:
        return pwd.getpwuid(os.getuid()).pw_name in grp.getgrgid(os.stat(path).st_gid).gr_mem
    except (KeyError, OSError):
        return False
