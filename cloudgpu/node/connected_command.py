"""Run a shell command on a node while its caller is connected: `python3 -c SOURCE LINE [stdin]`.

Without the word `stdin`, the command has no standard input.

An SSH server does not stop a command when its client disconnects. It closes the pipes, which a silent program never
notices. This program watches them and stops everything it started. It is sent as text, so it has no dependencies, and
needs only Python 3.8.
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
_LOOK_S = 0.05
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def main(line: str, *, reads: bool) -> int:
    """Run it and return its exit code; 128 + n when signal n ended it."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    stdin = None if reads else subprocess.DEVNULL
    process = subprocess.Popen([shell, "-c", line], stdin=stdin, start_new_session=True)
    asked = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: asked.set())
    threading.Thread(target=_watch, args=(asked,), daemon=True).start()
    ender = threading.Thread(target=_end, args=(process.pid, asked), daemon=True)
    ender.start()
    code = process.wait()
    if asked.is_set():
        ender.join()  # the shell has gone at a word, and something that it started may not
    return 128 - code if code < 0 else code


def _watch(asked: threading.Event) -> None:
    """Wait until standard output is no longer read."""
    watched = select.poll()
    watched.register(1, 0)  # nothing asked for: errors and hang-ups are told always
    watched.poll()
    asked.set()


def _end(group: int, asked: threading.Event) -> None:
    """Stop the process group on request: first SIGTERM, then SIGKILL for processes that remain."""
    asked.wait()
    deadline = time.monotonic() + GRACE_S
    number = int(signal.SIGTERM)
    while True:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            return  # nobody is left, or nobody that this user may end
        time.sleep(_LOOK_S)
        number = int(signal.SIGKILL) if time.monotonic() > deadline else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], reads="stdin" in sys.argv[2:]))
