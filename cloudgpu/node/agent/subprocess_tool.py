"""Run tools: slow ones with streamed output, and others with a time limit that holds if they cannot be killed."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from . import proc
from .untrusted_data import AgentError

_KEPT_LINES = 15
_SHOWN_CHARACTERS = 400
_PROGRESS_S = 10.0
_CREDENTIALS = re.compile(r"(\w+://)[^/\s@]+@")
TIMED_OUT = 124
"""Exit code of a tool that did not respond in time."""
REAPER = "cloudgpu-reaper"
"""Name of the threads that wait for tools that could not be killed."""
_KILL_S = 2.0
"""Seconds to wait for a killed tool. In an uninterruptible system call, it only exits when the call returns."""


@dataclass(frozen=True)
class ToolOptions:
    """How a tool runs.

    Attributes:
        cwd: Working directory; None for this process's.
        mask: Function that masks secrets in a line of output.
        hint: Hint for a failure of unknown cause.
        program: Name of the program in the error of a failure; empty for the name of the tool.
    """

    cwd: str | None = None
    mask: Callable[[bytes], bytes] = bytes
    hint: str = ""
    program: str = ""


_DEFAULTS = ToolOptions()


def run(
    argv: Sequence[str],
    what: str,
    progress: Callable[[str], None],
    *,
    holds: int,
    env: Mapping[str, str],
    options: ToolOptions = _DEFAULTS,
) -> None:
    """Run a tool and wait for it.

    The tool inherits the locked file handle `holds`. If this process dies, the file stays locked until the tool and its
    child processes have exited too.
    """
    parent, death = os.getpid(), proc.DeathSignal()
    try:
        tool = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(holds,),
            env=dict(env),
            cwd=options.cwd,
            preexec_fn=lambda: death.arm(parent),  # noqa: PLW1509 - this process has one thread
        )
    except OSError as error:
        raise AgentError(f"cannot run {argv[0]}: {error.strerror}") from error
    with tool:
        try:
            last_lines = _show(tool, what, progress, options.mask)
        except BaseException:
            # The caller has disconnected, so the result would not be used. Otherwise this would wait for the tool.
            tool.kill()
            raise
    if tool.returncode:
        # The caller shows several lines as details below the message.
        separator = ":\n" if len(last_lines) > 1 else ": "
        raise AgentError(
            separator.join(
                [
                    f"{what} failed ({options.program or argv[0].rpartition('/')[2]}: exit code {tool.returncode})",
                    "\n".join(last_lines),
                ]
            ),
            code="tool",
            hint=_hint("\n".join(last_lines), options.hint),
        )


def mask_url_credentials(line: str) -> str:
    """Return the line with credentials in URLs masked."""
    return _CREDENTIALS.sub(r"\1***@", line)


def _show(
    tool: subprocess.Popen[bytes], what: str, progress: Callable[[str], None], mask: Callable[[bytes], bytes]
) -> deque[str]:
    last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
    began = time.monotonic()
    for data in _chunks(tool.stdout):
        if data is None:
            progress(f"{what}: still running after {time.monotonic() - began:.0f} s")
            continue
        for line in mask(data).decode("utf-8", "replace").splitlines():
            shown = mask_url_credentials(line).strip()[:_SHOWN_CHARACTERS]
            if shown:
                last_lines.append(shown)
                progress(shown)
    return last_lines


def _chunks(stream: Any) -> Any:  # noqa: ANN401 - yields bytes, or None as a heartbeat
    """Yield complete lines as they arrive, and None after every `_PROGRESS_S` seconds of silence."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(_PROGRESS_S):
                yield None
                continue
            data = os.read(stream.fileno(), 65536)
            if not data:
                break
            whole, newline, pending = (pending + data).rpartition(b"\n")
            yield whole + newline
    yield pending


def _hint(text: str, otherwise: str) -> str:
    if "No space left" in text or "os error 28" in text:
        return "on the node, set CLOUDGPU_ENVS to a directory with more free space, or increase resources.disk"
    if "ensurepip" in text:
        return "on the node, install python3-venv (apt-get install python3-venv) or uv"
    return otherwise


def run_bounded(argv: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return a tool's exit code and output. Kill a tool that hangs, and return `TIMED_OUT` for it."""
    tool = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if environment is None else dict(environment),
    )
    try:
        output, _ = tool.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        tool.kill()
        try:
            tool.communicate(timeout=_KILL_S)
        except subprocess.TimeoutExpired:
            if tool.stdout is not None:
                tool.stdout.close()
            # A thread waits for the tool, so that this process does not. It ends with the tool, or with this process.
            threading.Thread(target=tool.wait, name=REAPER, daemon=True).start()
        return TIMED_OUT, f"no response within {limit_s:.0f} s"
    return tool.returncode, output.decode("utf-8", "replace")


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""
