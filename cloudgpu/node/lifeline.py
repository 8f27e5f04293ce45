"""Runs one shell line on a node for as long as somebody waits for it: `python3 -c SOURCE LINE [stdin]`.

Without the word `stdin` the line has nothing to read.

An SSH server ends nothing when its client goes away: it closes the pipes, which a silent program never notices. This
one watches them, and ends everything that it started. Sent as text, so it stands alone; Python 3.8 is enough.
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
    """Wait until nobody reads standard output any more."""
    watched = select.poll()
    watched.register(1, 0)  # nothing asked for: errors and hang-ups are told always
    watched.poll()
    asked.set()


def _end(group: int, asked: threading.Event) -> None:
    """Once it is asked for: a polite word to all, and the end of those that do not listen."""
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
