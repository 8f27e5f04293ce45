"""Run the verb named on the command line and report errors as JSON lines."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Sequence

from . import proc
from .heartbeat import LONG_VERBS, Heartbeat
from .untrusted_data import AgentError, parse_json

# The names are part of the protocol, which other versions use: `hand` serves files to peers, `keep` and `kept` upload
# checkpoints, and `leave` cleans up. The modules are imported on demand, so that `status` does not wait for the imports
# of the download modules.
_VERBS = {
    "probe": "probe:probe_node",
    "describe": "probe:describe_host",
    "env": "environments.environment:prepare_environment",
    "setup": "environments.setup:run_setup",
    "image": "containers.image:prepare_image",
    "fetch": "fetch.download:fetch_files",
    "forget": "fetch.download:forget_files",
    "hand": "fetch.serve_peers:serve_peers",
    "keep": "checkpoint_upload:start_upload",
    "kept": "checkpoint_upload:finish_upload",
    "mount": "mount:mount_datasets",
    "unmount": "mount:unmount_datasets",
    "start": "gang.start_stop:start_run",
    "status": "gang.status:report_status",
    "busy": "gang.status:report_busy",
    "follow": "gang.logs:follow_run",
    "stop": "gang.start_stop:stop_run",
    "lease": "leases.lease:manage_lease",
    "leave": "leases.cleanup:clean_up",
}
_HEARTBEAT = Heartbeat()
_READS_NOTHING = frozenset({"probe"})
_BUG = 70
"""Exit code of an internal error (EX_SOFTWARE in sysexits.h)."""


def entry() -> None:
    """Run the verb and exit."""
    proc.forbid_core_dumps()
    if sys.argv[1:] and sys.argv[1] in LONG_VERBS:
        _HEARTBEAT.start()
    try:
        raise SystemExit(main(sys.argv[1:]))
    finally:
        _HEARTBEAT.stop()


def main(argv: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    try:
        return _run(argv)
    except AgentError as error:
        emit({"error": error.message, "hint": error.hint, "code": error.code})
        return 1
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except Exception as error:
        emit({"error": f"agent: {type(error).__name__}: {error}", "hint": "", "code": "bug"})
        sys.excepthook(*sys.exc_info())
        raise SystemExit(_BUG) from error


def emit(line: dict[str, Any]) -> None:
    """Write one JSON line and flush it."""
    _HEARTBEAT.write(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n")


def _run(argv: Sequence[str]) -> int:
    if len(argv) != 1 or argv[0] not in _VERBS:
        raise AgentError(f"unknown verb {list(argv)!r}", hint=f"use one of: {' '.join(_VERBS)}")
    module, _, function = _VERBS[argv[0]].partition(":")
    verb = getattr(importlib.import_module("." + module, __package__), function)
    verb({} if argv[0] in _READS_NOTHING else _spec(), emit)
    return 0


def _spec() -> dict[str, Any]:
    try:
        spec = parse_json(sys.stdin.buffer.read() or b"{}")
    except ValueError:
        # The input may contain secrets, so neither the input nor the parser's excerpt of it is shown.
        raise AgentError("standard input is not JSON") from None
    if not isinstance(spec, dict):
        raise AgentError("standard input is not a JSON object")
    return spec


def _discard_stdout() -> None:
    """Redirect standard output to /dev/null, because the interpreter's flush at exit would report the broken pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
