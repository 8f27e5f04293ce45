"""`busy`: the other runs on this node that have not ended, from every machine that uses the node."""

from __future__ import annotations

import os
from typing import Any, Callable

from ..errors import AgentError
from . import status


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print the IDs of the runs beside the one in `run_dir` that have not ended."""
    emit({"runs": unfinished_runs(status.run_dir(spec))})


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
        known = status.read_status_if_any(folder)
    except (AgentError, OSError):
        return False
    return known is not None and known["state"] not in status.FINAL
