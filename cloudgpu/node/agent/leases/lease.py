"""`lease`: lease GPUs on this host for a cluster, show all leases, or extend one."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Callable

from .. import files, proc
from ..containers.docker_api import engine_state
from ..gpus import gpu_ids, gpu_processes
from ..untrusted_data import AgentError
from . import store
from .store import Lease, gpu_names
from .termination import ensure_daemon_running

Emit = Callable[[dict], None]  # type: ignore[type-arg]  # Python 3.8 does not support dict[...] at run time
MARK = "cluster.json"
"""File in a cluster's directory that records the cluster's name, owner and token."""


def manage_lease(spec: dict[str, Any], emit: Emit) -> None:
    """Perform the action `take`, `show` or `extend` and print the result."""
    actions = {"take": _take, "show": _show, "extend": _extend}
    action = actions.get(str(spec.get("action")))
    if action is None:
        raise AgentError(f"lease: unknown action {spec.get('action')!r}", hint=f"use one of: {' '.join(actions)}")
    emit(action(spec))


def _take(spec: dict[str, Any]) -> dict[str, Any]:
    """Lease the first free GPUs, or renew an active lease on the same number of GPUs.

    An expired lease is not renewed, because another cluster may have leased its GPUs since. A lease daemon enforces the
    expiry.
    """
    requested = _number(spec, "gpus")
    home = _text(spec, "home")
    lease = Lease(
        _text(spec, "token"), _text(spec, "cluster"), _text(spec, "owner"), (), _number(spec, "expires_epoch_s"),
        home=home, machine=proc.machine_id(),
    )  # fmt: skip
    with store.lease_lock():
        existing = store.find_own_lease(lease.token, home)
        ids = gpu_ids()
        gpus = (
            existing.gpus
            if existing is not None and not existing.expired and len(existing.gpus) == requested
            else _free(requested, ids, existing)
        )
        taken = replace(lease, gpus=gpus)
        store.write_lease(taken)
    os.makedirs(home, mode=0o700, exist_ok=True)
    # Files outlive a lease. This record makes it possible to find and delete them even if the caller loses its state.
    record = {"cluster": taken.cluster, "owner": taken.owner, "token": taken.token, "machine": taken.machine}
    files.write_json(os.path.join(home, MARK), record)
    ensure_daemon_running(taken.token, home)
    return {"devices": list(gpus), "of": len(ids)}


def _free(requested: int, ids: dict[str, int], own: Lease | None) -> tuple[int, ...]:
    others = [lease for lease in store.active_leases() if lease != own]
    leased = {gpu for lease in others for gpu in lease.gpus}
    unleased = [process for process in gpu_processes(ids) if process.gpu not in leased]
    free = sorted(set(ids.values()) - leased - {process.gpu for process in unleased})
    if len(ids) < requested:
        raise AgentError(f"GPUs requested: {requested}, but this host has only {len(ids)}", code="no-gpu")
    if len(free) < requested:
        in_use = [lease.description for lease in others] + [process.description for process in unleased]
        gpus = "1 GPU" if len(ids) == 1 else f"{len(ids)} GPUs"
        raise AgentError(
            f"only {len(free)} of {gpus} are free, but {requested} are requested; in use: {'; '.join(in_use)}",
            code="leased" if others else "in-use",
            hint="wait until enough GPUs are free, or request fewer GPUs or another pool",
        )
    return tuple(free[:requested])


def _show(spec: dict[str, Any]) -> dict[str, Any]:
    """Return all leases, GPUs and GPU processes and, if requested, the state of the Docker engine.

    If `nvidia-smi` fails, `problem` contains the reason.
    """
    token = str(spec.get("token", ""))
    leases = store.active_leases()
    problem, ids, busy = "", {}, []
    try:
        ids = gpu_ids()
        busy = gpu_processes(ids)
    except AgentError as error:
        problem = error.message
    return {
        "gpus": sorted(ids.values()),
        "problem": problem,
        "epoch_s": int(time.time()),
        "system": proc.running_system_id(),
        **({"engine": engine_state(gpus=bool(ids))} if spec.get("engine") else {}),
        "leases": [
            {"cluster": lease.cluster, "owner": lease.owner, "user": lease.user, "gpus": list(lease.gpus),
             "expires_epoch_s": lease.expires_epoch_s, "mine": lease.token == token, "told": lease.description}
            for lease in leases
        ],
        "processes": [
            {"gpu": process.gpu, "pid": process.pid, "user": process.user, "told": process.description}
            for process in busy
        ],
    }  # fmt: skip


def _extend(spec: dict[str, Any]) -> dict[str, Any]:
    with store.lease_lock():
        current = store.find_own_lease(_text(spec, "token"), _text(spec, "home"))
        if current is None or current.expired:
            raise AgentError(
                "the lease on this host has expired",
                code="no-lease",
                hint="run `cloudgpu down`, then start the cluster again",
            )
        until = _number(spec, "expires_epoch_s")
        store.write_lease(replace(current, expires_epoch_s=until))
    ensure_daemon_running(current.token, current.home or _text(spec, "home"))
    return {"devices": list(current.gpus), "told": gpu_names(current.gpus)}


def _text(spec: dict[str, Any], name: str) -> str:
    value = spec.get(name)
    if not isinstance(value, str) or not value:
        raise AgentError(f"lease: {name} must be a non-empty string")
    return value


def _number(spec: dict[str, Any], name: str) -> int:
    value = spec.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise AgentError(f"lease: {name} must be a non-negative integer")
    return value
