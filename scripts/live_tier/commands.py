"""Run `cloudgpu` commands, show their progress, and record their AWS calls."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from cloudgpu.aws.session.recording import RECORDING_VARIABLE
from live_tier.evidence import CommandResult, calls_in
from live_tier.recordings import Recording

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OF_CLUSTER = frozenset(
    ("up", "bootstrap state", "expiry", "driver", "EFA devices", "bootstrap log", "train", "down", "cost")
)
"""Commands that need nodes, or what an earlier command wrote about them in the state home."""
_COMMAND = (sys.executable, "-m", "cloudgpu")


class Commands:
    """The commands of one run.

    A command gets a session of its own, so that Ctrl-C reaches only this process, which interrupts a command once and
    then waits for it. During cleanup, signals do not interrupt anything.

    Attributes:
        results: The finished commands.
        interrupted: Whether a signal was received.
        cleaning: Set before cleanup.
    """

    def __init__(
        self,
        raw: Path,
        environ: Mapping[str, str],
        show: Callable[[str], None],
        replayed: Recording | None = None,
    ) -> None:
        """Take the folder for unscrubbed recordings and, to replay, a scrubbed recording."""
        self.results: list[CommandResult] = []
        self.interrupted = False
        self.cleaning = False
        self._raw = raw
        self._environ = environ
        self._show = show
        self._replayed = replayed
        self._running: subprocess.Popen[str] | None = None

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP as described above."""
        previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        was_interrupted, self.interrupted = self.interrupted, True
        if self.cleaning:
            self._show("interrupted; deleting the cluster all the same")
        elif self._running is not None:
            self._running.send_signal(signal.SIGINT)
        elif not was_interrupted:  # a second signal must not interrupt the way to the cleanup
            raise KeyboardInterrupt

    def run(self, name: str, *arguments: str) -> CommandResult:
        """Run a command to its end. In a replay, a command that needs nodes is not run: its recorded result counts."""
        if self._replayed is not None and name in OF_CLUSTER:
            self.results.append(self._replayed.result(name))
        else:
            self.results.append(self._run(name, arguments))
        if self.interrupted and not self.cleaning:
            raise KeyboardInterrupt
        return self.results[-1]

    def _run(self, name: str, arguments: tuple[str, ...]) -> CommandResult:
        path = self._raw / f"{len(self.results):02}.jsonl"
        started = time.monotonic()
        process = subprocess.Popen(
            [*self._program(name), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**self._environ, RECORDING_VARIABLE: str(path), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self._running = process
        errors: list[str] = []
        reader = threading.Thread(target=self._follow, args=(process, errors), daemon=True)
        reader.start()
        stdout = process.stdout.read() if process.stdout else ""
        process.wait()
        reader.join()
        self._running = None
        return CommandResult(
            name,
            arguments,
            process.returncode,
            time.monotonic() - started,
            stdout,
            "".join(errors),
            tuple(calls_in(path)),
        )

    def _program(self, name: str) -> Sequence[str]:
        if self._replayed is None:
            return _COMMAND
        return (sys.executable, "-m", "live_tier.replay", str(self._replayed.files.get(name, "")))

    def _follow(self, process: "subprocess.Popen[str]", lines: list[str]) -> None:
        for line in process.stderr or ():
            lines.append(line)
            self._show(line.rstrip("\n"))
