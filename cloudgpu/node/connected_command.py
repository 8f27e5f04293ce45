"""Run a shell command on a node, and stop it if the client disconnects: `python3 -c SOURCE LINE [stdin]`.

Without the argument `stdin`, the command's standard input is `/dev/null`.

An SSH server does not stop a command when the client disconnects. The server closes the pipes, but a command that
prints nothing never notices. This program therefore watches its own standard output and, once that pipe is closed,
stops the command's process group. The program is sent as source text, so it has no dependencies and needs only
Python 3.8.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 5.0
_POLL_S = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main(line: str, *, reads: bool) -> int:
    """Run a shell command and return its exit code, or 128 + n if signal n killed the shell.

    If `reads` is True, the command reads this program's standard input.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    stdin = None if reads else subprocess.DEVNULL
    process = subprocess.Popen([shell, "-c", line], stdin=stdin, start_new_session=True)
    stop_requested = threading.Event()
    for signal_number in _SIGNALS:
        signal.signal(signal_number, lambda *_: stop_requested.set())
    threading.Thread(target=_watch, args=(stop_requested,), daemon=True).start()
    stopper = threading.Thread(target=_stop_group, args=(process.pid, stop_requested), daemon=True)
    stopper.start()
    code = process.wait()
    if stop_requested.is_set():
        stopper.join()  # SIGTERM may have ended the shell while a process that it started is still running
    return 128 - code if code < 0 else code


def _watch(stop_requested: threading.Event) -> None:
    """Request a stop once the reader of standard output has disconnected."""
    poll = select.poll()
    poll.register(1, 0)  # no events requested: poll always reports errors and hang-ups
    poll.poll()
    stop_requested.set()


def _stop_group(group: int, stop_requested: threading.Event) -> None:
    """Wait for a stop request, then send the process group SIGTERM and, after `GRACE_S` seconds, SIGKILL."""
    stop_requested.wait()
    deadline = time.monotonic() + GRACE_S
    signal_number = int(signal.SIGTERM)
    while True:
        try:
            os.killpg(group, signal_number)
        except (ProcessLookupError, PermissionError):
            return  # no process remains, or this user may not signal those that remain
        time.sleep(_POLL_S)
        signal_number = int(signal.SIGKILL) if time.monotonic() > deadline else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], reads="stdin" in sys.argv[2:]))
