"""`status` and `busy`: a run's status file, the status if its agent has died, and the unfinished runs on this node."""

from __future__ import annotations

import os
import time
from typing import Any, Callable

from .. import files, proc
from ..files import utc
from ..untrusted_data import AgentError, raise_malformed_as, require_integer, text

FINAL = frozenset({"succeeded", "failed", "cancelled", "lost"})
_SILENT_S = 60.0
"""Minimum silence, in seconds, after which an agent counts as lost. Three times `lost_s` applies if that is longer."""


def report_status(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """`status`: print the status of the run in `run_dir`."""
    emit(read_status(run_dir(spec)))


def run_dir(spec: dict[str, Any]) -> str:
    """Return the run directory named in a request."""
    folder = spec.get("run_dir")
    if not isinstance(folder, str) or not os.path.isabs(os.path.expanduser(folder)):
        raise AgentError("run_dir must be an absolute path")
    return os.path.expanduser(folder)


def status_path(folder: str) -> str:
    """Return the path of a run's status file."""
    return os.path.join(folder, "status.json")


def log_path(folder: str, rank: int) -> str:
    """Return the path of a rank's log."""
    return os.path.join(folder, f"rank-{rank}.log")


def read_status(folder: str) -> dict[str, Any]:
    """Return the current status of the run. If the agent is dead or silent, the state is `lost`."""
    status = read_status_if_any(folder)
    if status is None:
        raise AgentError(f"there is no run in {folder}", code="no-run", hint="start the run first")
    return status


def read_status_if_any(folder: str) -> dict[str, Any] | None:
    """Return the current status of the run, or None if there is no run. See `read_status`."""
    with raise_malformed_as(
        lambda _: AgentError(f"{status_path(folder)} is damaged", hint="use another run directory")
    ):
        return _read_if_any(folder)


def _read_if_any(folder: str) -> dict[str, Any] | None:
    stored = files.read_json(status_path(folder))
    if stored is None:
        return None
    text(stored["state"])
    if stored["state"] not in FINAL and not proc.is_alive(stored["agent"]):
        # The agent may have written its final status between the two checks.
        stored = files.read_json(status_path(folder)) or stored
    touched = os.stat(status_path(folder)).st_mtime
    reason = _lost_reason(stored, time.time() - touched)
    if reason:
        stored["state"] = "lost"
        failure = {"rank": None, "exit_code": None, "node_index": stored["node_index"], "reason": reason}
        stored["first_failure"] = stored["first_failure"] or failure
    stored["heartbeat_utc"] = utc(touched)
    _measure_logs(folder, stored["ranks"])
    return stored


def _lost_reason(stored: dict[str, Any], silent_s: float) -> str:
    if stored["state"] in FINAL:
        return ""
    if not proc.is_alive(stored["agent"]):
        return f"the agent on node {stored['node_index']} died"
    if silent_s > max(_SILENT_S, 3 * stored["lost_s"]):
        return f"the agent on node {stored['node_index']} has been silent for {silent_s:.0f} s"
    return ""


def _measure_logs(folder: str, ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        try:
            rank["log_bytes"] = os.stat(log_path(folder, require_integer(rank["rank"]))).st_size
        except FileNotFoundError:
            rank["log_bytes"] = 0


def report_busy(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the IDs of the runs beside the one in `run_dir` that have not ended."""
    emit({"runs": unfinished_runs(run_dir(spec))})


def unfinished_runs(folder: str) -> list[str]:
    """Return the IDs of the unfinished runs beside the run in this directory, sorted.

    A run whose agent is dead or silent has ended. A damaged status file is ignored, because nothing can end that run.
    """
    runs = os.path.dirname(os.path.normpath(folder))
    try:
        names = sorted(set(os.listdir(runs)) - {os.path.basename(os.path.normpath(folder))})
    except FileNotFoundError:
        return []
    return [name for name in names if _is_unfinished(os.path.join(runs, name))]


def refuse_if_busy(folder: str) -> None:
    """Raise an error if another run on this node has not ended."""
    runs = unfinished_runs(folder)
    if runs:
        raise AgentError(f"run {runs[0]} is in progress on this node", code="busy")


def _is_unfinished(folder: str) -> bool:
    try:
        known = read_status_if_any(folder)
    except (AgentError, OSError):
        return False
    return known is not None and known["state"] not in FINAL
