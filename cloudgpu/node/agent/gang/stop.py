"""`stop`: stop a run on all of its nodes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

from .. import files, proc
from ..errors import AgentError
from . import status
from .supervisor import REQUEST

_DEFAULT_GRACE_S = 10.0
_LONGEST_GRACE_S = 86400.0
_EXTRA_S = 20.0
"""Seconds to wait beyond the grace period, so that the nodes can agree and slow processes can exit."""


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Ask the daemon to stop the run on all nodes, wait, and print the final status. Idempotent."""
    folder = status.run_dir(spec)
    name, grace_s = _signal(spec), _grace_s(spec)
    known = status.read_status(folder)
    if known["state"] not in status.FINAL:
        files.write_json(os.path.join(folder, REQUEST), {"signal": name, "grace_s": grace_s})
        _wake(known["agent"])
        known = _await_end(folder, grace_s + _EXTRA_S)
    emit(known)


def _signal(spec: dict[str, Any]) -> str:
    name = spec.get("signal", "SIGTERM")
    if not isinstance(name, str) or name not in signal.Signals.__members__:
        raise AgentError(f"stop: unknown signal {name!r}", hint="use a name such as SIGTERM")
    return name


def _grace_s(spec: dict[str, Any]) -> float:
    grace_s = spec.get("grace_s", _DEFAULT_GRACE_S)
    if isinstance(grace_s, bool) or not isinstance(grace_s, (int, float)) or not 0 <= grace_s <= _LONGEST_GRACE_S:
        raise AgentError(f"stop: grace_s must be between 0 and {_LONGEST_GRACE_S:.0f} seconds")
    return float(grace_s)


def _wake(agent: dict[str, Any]) -> None:
    if proc.is_alive(agent):
        os.kill(int(agent["pid"]), signal.SIGTERM)
        os.kill(int(agent["pid"]), signal.SIGCONT)  # a suspended agent would not handle SIGTERM


def _await_end(folder: str, limit_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while True:
        known = status.read_status(folder)
        if known["state"] in status.FINAL:
            return known
        if time.monotonic() > deadline:
            raise AgentError(
                f"the run did not stop within {limit_s:.0f} s", code="busy", hint="try again, or terminate the node"
            )
        time.sleep(0.05)
