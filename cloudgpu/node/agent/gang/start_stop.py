"""`start` starts a daemon that runs this node's part of a run and outlives the caller; `stop` stops the run."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Sequence

from .. import files, proc
from ..containers import run_container
from ..untrusted_data import AgentError
from . import status
from .spec import StartSpec, read_start
from .status import refuse_if_busy
from .supervisor import REQUEST, Supervisor

Emit = Callable[[Dict[str, Any]], None]
_DEFAULT_GRACE_S = 10.0
_LONGEST_GRACE_S = 86400.0
_EXTRA_S = 20.0
"""Seconds to wait beyond the grace period, so that the nodes can agree and slow processes can exit."""


def start_run(spec: dict[str, Any], emit: Emit) -> None:
    """Start the run, or report its status if it has already been started."""
    start_spec = read_start(spec)
    if start_spec.container is not None:
        run_container.restart_with_docker_group(start_spec.container.client[-1], "start", spec)
    _check_directories(start_spec)
    # The lock of the directory of all runs decides between two runs that start at the same time.
    runs_lock = os.path.join(os.path.dirname(os.path.normpath(start_spec.run_dir)), "start.lock")
    with files.locked(runs_lock) as every, files.locked(os.path.join(start_spec.run_dir, "start.lock")) as lock:
        known = status.read_status_if_any(start_spec.run_dir)
        if known is None:
            if start_spec.alone:
                refuse_if_busy(start_spec.run_dir)
            _launch(start_spec, (every, lock))
        elif known["run_id"] != start_spec.run_id:
            raise AgentError(f"{start_spec.run_dir} contains run {known['run_id']}", hint="use another run directory")
    emit({**status.read_status(start_spec.run_dir), "started": known is None})


def _check_directories(start_spec: StartSpec) -> None:
    try:
        os.makedirs(start_spec.run_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        raise AgentError(f"cannot create {start_spec.run_dir}: {error.strerror}") from error
    if not os.path.isdir(start_spec.workdir):
        raise AgentError(
            f"the work directory {start_spec.workdir} does not exist", hint="copy the work directory to the node first"
        )


def _launch(start_spec: StartSpec, locks: Sequence[int]) -> None:
    """Fork twice and wait until the daemon has written its status to disk."""
    sys.stdout.flush()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        if os.fork() == 0:
            _daemon(start_spec, write, locks)
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as stream:
        reply = stream.read()
    _check_reply(json.loads(reply) if reply else None, start_spec)


def _check_reply(reply: dict[str, Any] | None, start_spec: StartSpec) -> None:
    if reply is None:
        log = os.path.join(start_spec.run_dir, "agent.log")
        raise AgentError("the agent's daemon died during startup", hint=f"see {shlex.quote(log)} on the node")
    if "error" in reply:
        raise AgentError(reply["error"], hint=reply["hint"], code=reply["code"])


def _daemon(start_spec: StartSpec, write: int, locks: Sequence[int]) -> None:
    """Run the daemon. Never returns. Unexpected errors are logged in `agent.log`."""
    try:
        _detach(start_spec.run_dir)
        supervisor = _begin(start_spec, write)
        # This process keeps the locks until the status file exists, so that a second start waits for the first.
        for handle in (write, *locks):
            os.close(handle)
        supervisor.run()
    except AgentError:
        os._exit(1)
    except BaseException:  # noqa: BLE001 - the process ends here, with its traceback in the log
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _begin(start_spec: StartSpec, write: int) -> Supervisor:
    try:
        supervisor = Supervisor(start_spec)
    except (AgentError, OSError) as error:
        agent_error = (
            error if isinstance(error, AgentError) else AgentError(f"the agent cannot start: {error.strerror}")
        )
        _tell(write, {"error": agent_error.message, "hint": agent_error.hint, "code": agent_error.code})
        raise
    _tell(write, {})
    return supervisor


def _tell(write: int, reply: dict[str, Any]) -> None:
    """Send the result of the start to the caller if it is still running. The run continues either way."""
    with suppress(BrokenPipeError):
        os.write(write, json.dumps(reply).encode())


def _detach(folder: str) -> None:
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(folder, "agent.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def stop_run(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
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
