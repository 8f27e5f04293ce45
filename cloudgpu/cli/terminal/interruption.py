"""Ctrl-C, SIGTERM and SIGHUP: the first signal stops the command cleanly, the second signal stops it immediately.

In both cases the command reports its partial result, which resources are still running, and how to continue. The first
signal raises KeyboardInterrupt in the main thread, so that commands treat all three signals alike. The handler for the
second signal must not wait for a thread, a lock or a node, so it writes directly to the file descriptors and exits.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

from cloudgpu.cli.render.error import failure_json
from cloudgpu.cli.terminal.output import json_text
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import command

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 128 + int(signal.SIGINT)
_UNREAD = 141


class Interrupted(BaseException):
    """An interruption by Ctrl-C; `partial_result` contains fields for the command's `--json` output.

    This is not a KeyboardInterrupt, because typer would convert that to an exit code and lose the fields.
    """

    def __init__(self, partial_result: dict[str, Any]) -> None:
        super().__init__("interrupted")
        self.partial_result = partial_result


@contextmanager
def reporting_partial_result(partial_result: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Attach the command's partial result to the error or Ctrl-C that aborts the command."""
    try:
        yield
    except CloudGpuError as err:
        err.partial_result = err.partial_result or partial_result()
        raise
    except KeyboardInterrupt:
        raise Interrupted(partial_result()) from None


@contextmanager
def print_on_interrupt(write: Callable[[list[str]], None], *lines: str) -> Iterator[None]:
    """Write these lines after Ctrl-C, then reraise the interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        write(["", *lines])
        raise


def reattach_lines(run_id: str) -> tuple[str, str]:
    """Return lines that tell the user that a run continues, and how to reattach to the run or cancel it."""
    return (
        f"run {run_id} continues without this command",
        f"to reattach: {command('cloudgpu', 'attach', run_id)}    to cancel: {command('cloudgpu', 'cancel', run_id)}",
    )


class CountedDocuments(Protocol):
    """The part of a screen that tells whether a command still owes its reader a JSON document."""

    @property
    def json_mode(self) -> bool:
        """Whether the command writes one JSON document to stdout."""

    @property
    def documents(self) -> int:
        """Number of JSON documents that this process has written."""


class Interruptions:
    """The signal handling of a command. There is one instance per process."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self._screen: CountedDocuments | None = None
        self._documents = 0
        self._still_running: Callable[[], list[str]] | None = None
        self._deferring = self._pending = False

    def tell(self, still_running: Callable[[], list[str]]) -> None:
        """Set the function that returns lines about the resources that are still running, for use after a signal."""
        self._still_running = still_running

    @property
    def may_ask(self) -> bool:
        """Whether the user can still answer prompts: True before any signal and after Ctrl-C, otherwise False."""
        return self.first in (None, signal.SIGINT)

    def exit_code(self, code: int) -> int:
        """Return 128 plus the signal number (129, 130 or 143) if a signal interrupted the command, otherwise `code`."""
        ended = code == INTERRUPTED or (code == _UNREAD and self.first == signal.SIGHUP)
        return 128 + int(self.first) if ended and self.first is not None else code

    @contextmanager
    def handle_signals(self, screen: CountedDocuments) -> Iterator[None]:
        """Handle signals while the command runs. A signal that is ignored, as under `nohup`, stays ignored."""
        self.first, self._still_running = None, None
        self._screen, self._documents = screen, screen.documents
        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {
                signal_number: signal.getsignal(signal_number)
                for signal_number in HANDLED_SIGNALS
                if signal.getsignal(signal_number) != signal.SIG_IGN
            }
        for signal_number in before:
            signal.signal(signal_number, self._came)
        try:
            yield
        finally:
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise the first signal's KeyboardInterrupt only at the end of a short block, if this is the main thread.

        In the middle of `Thread.start`, it would leave a lock of the standard library released, so that a RuntimeError
        would replace it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt

    def lines(self) -> list[str]:
        """Return lines about the resources still running; empty if there was no signal or `tell` was not called."""
        if self.first is None or self._still_running is None:
            return []
        try:
            return self._still_running()
        except Exception as err:  # noqa: BLE001 - the command must exit even if the records are damaged
            return [f"cannot tell what is still running: {err}", "    to list clusters: cloudgpu status --refresh"]

    def _came(self, number: int, _frame: FrameType | None) -> None:
        if self.first is None:
            self.first = signal.Signals(number)
            if self._deferring:
                self._pending = True
                return
            raise KeyboardInterrupt
        code = 128 + number
        try:
            self._exit_immediately(code)
        finally:
            os._exit(code)

    def _exit_immediately(self, code: int) -> None:
        lines = self.lines()
        screen = self._screen
        if screen is not None and screen.json_mode and screen.documents == self._documents:
            document = {**failure_json("Interrupted", "interrupted", "", code, []), "left": lines, "interrupted": True}
            _write(1, json_text(document) + "\n")
        _write(2, "\n".join(["", "interrupted again: exiting immediately", *lines, ""]))


def _write(descriptor: int, text: str) -> None:
    """Write directly to a file descriptor, because the interrupted code may hold the lock of the stream."""
    with contextlib.suppress(OSError):
        os.write(descriptor, text.encode(errors="replace"))


interruptions = Interruptions()
