"""`stop`: end a run on every node of its gang."""

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
_PATIENCE_S = 20.0
"""Beyond the grace: for the gang's agreement and for processes that take long to die."""


def verb(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Ask the daemon to end the gang's run, wait for it, print the final status. Ending an ended run is no error.

    Raises:
        AgentError: There is no run, the signal is unknown, or the run did not end in time.
    """
    folder = status.run_dir(spec)
    name, grace_s = _signal(spec), _grace_s(spec)
    known = status.read(folder)
    if known["state"] not in status.FINAL:
        files.write_json(os.path.join(folder, REQUEST), {"signal": name, "grace_s": grace_s})
        _wake(known["agent"])
        known = _await_end(folder, grace_s + _PATIENCE_S)
    emit(known)


def _signal(spec: dict[str, Any]) -> str:
    name = spec.get("signal", "SIGTERM")
    if not isinstance(name, str) or name not in signal.Signals.__members__:
        raise AgentError(f"stop: unknown signal {name!r}", hint="for example SIGTERM")
    return name


def _grace_s(spec: dict[str, Any]) -> float:
    given = spec.get("grace_s", _DEFAULT_GRACE_S)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= _LONGEST_GRACE_S:
        raise AgentError(f"stop: grace_s must be between 0 and {_LONGEST_GRACE_S:.0f} seconds")
    return float(given)


def _wake(agent: dict[str, Any]) -> None:
    if proc.alive(agent):
        os.kill(int(agent["pid"]), signal.SIGTERM)
        os.kill(int(agent["pid"]), signal.SIGCONT)  # a stopped agent could not obey


def _await_end(folder: str, limit_s: float) -> dict[str, Any]:
    deadline = time.monotonic() + limit_s
    while True:
        known = status.read(folder)
        if known["state"] in status.FINAL:
            return known
        if time.monotonic() > deadline:
            raise AgentError(
                f"the run did not stop within {limit_s:.0f} s", code="busy", hint="try again, or terminate the node"
            )
        time.sleep(0.05)
