"""The live region on a real pseudo-terminal, read by a terminal emulator."""

import os
import signal
import sys
import textwrap
from typing import Any

import pytest

from tests.pseudo_terminal import PseudoTerminal

SCRIPT = """
import sys
from cloudgpu.run.progress import StageChange
from cloudgpu.cli.main import interruptions
from cloudgpu.cli.command_end import open_resources
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.run.progress import Activity, Note, RankLine

def step():
    "Wait for the test."
    if sys.stdin.readline() == "":
        raise SystemExit(3)

screen = Screen()
with open_resources:
    screen.line("before")
"""


class Script(PseudoTerminal):
    """A script that draws on a terminal and waits for the test at every `step()`."""

    def __init__(self, body: str, columns: int = 80, rows: int = 24, **environ: str) -> None:
        read, self._steps = os.pipe()
        program = SCRIPT + textwrap.indent(textwrap.dedent(body), "    ")
        inherited = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        super().__init__(
            [sys.executable, "-c", program],
            environ={**inherited, "TERM": "xterm-256color", **environ},
            columns=columns,
            rows=rows,
            stdin=read,
        )
        os.close(read)

    def step(self) -> None:
        """Let the script continue behind its next `step()`."""
        os.write(self._steps, b"\n")

    def close(self) -> None:
        os.close(self._steps)
        super().close()


@pytest.fixture
def command(request: pytest.FixtureRequest):
    def start(body: str, **options: Any) -> Script:
        started = Script(body, **options)
        request.addfinalizer(started.close)
        return started

    return start


TRAIN = """
screen.emit(StageChange("train"))
for number in range(20):
    screen.emit(RankLine(0, f"line {number}"))
screen.emit(Note("port 22 stays open"))
step()
screen.emit(StageChange("train", 12.0))
screen.line("after")
"""


def test_region_is_drawn_below_the_lines_that_stay_and_erased_at_the_end(command):
    training = command(TRAIN)
    shown = training.until(lambda text: "line 19" in text and "==> train  1 s" in text)
    assert shown.split("\n") == [
        "before",
        "train: port 22 stays open",
        *(f"    [rank 0] line {number}" for number in range(12, 20)),
        shown.split("\n")[-1],
    ]
    assert shown.split("\n")[-1].startswith("==> train  1 s  training output;")
    training.step()
    assert training.end() == (0, "before\ntrain: port 22 stays open\n==> train  12.0 s\nafter")
    assert b"\x1b[?25l" not in training.raw  # a command that is killed must not leave the cursor hidden


def test_no_color_leaves_the_region_but_no_colors(command):
    training = command(TRAIN, NO_COLOR="1")
    training.until(lambda text: "line 19" in text and "==> train" in text)
    training.step()
    assert training.end() == (0, "before\ntrain: port 22 stays open\n==> train  12.0 s\nafter")
    assert b"\x1b[1m" not in training.raw
    assert b"\x1b[36m" not in training.raw


def test_dumb_terminal_gets_plain_lines(command):
    training = command(TRAIN, TERM="dumb")
    training.step()
    code, text = training.end()
    assert code == 0
    assert text.count("[rank 0] line") == 20
    assert b"\x1b" not in training.raw


def test_long_region_is_cut_to_a_terminal_that_becomes_smaller(command):
    training = command(
        """
        screen.emit(StageChange("train"))
        for number in range(20):
            screen.emit(RankLine(0, f"line {number} " + "x" * 200))
        step()
        for number in range(20, 40):
            screen.emit(RankLine(0, f"line {number} " + "y" * 200))
        step()
        screen.emit(StageChange("train", 12.0))
        screen.line("after")
        """,
        columns=100,
    )
    training.until(lambda text: "line 19" in text)
    training.resize(60, 12)
    training.step()
    shown = training.until(lambda text: "line 39" in text)
    assert all(len(line) <= 60 for line in shown.split("\n"))
    training.step()
    code, text = training.end()
    assert code == 0
    assert text.split("\n")[-2:] == ["==> train  12.0 s", "after"]


def test_signal_while_the_thread_of_the_region_is_started_is_an_interrupt(command):
    """Inside of `Thread.start`, an exception of the signal handler leaves a lock of the standard library released."""
    training = command(
        """
        import os, signal, threading
        start = threading.Thread.start
        def interrupted(thread):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0)  # runs the handler
            screen.line("not yet")
            start(thread)
        threading.Thread.start = interrupted
        with interruptions.handle_signals(screen):
            try:
                screen.emit(Activity("searching", done=1, total=20, unit="regions"))
            except KeyboardInterrupt:
                screen.trouble("interrupted", hint="run it again")
        """
    )
    assert training.end() == (0, "before\nnot yet\nerror: interrupted\nhint: run it again")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_erases_the_region_and_leaves_what_matters(command, number):
    training = command(
        """
        with interruptions.handle_signals(screen):
            try:
                screen.emit(Activity("searching", done=1, total=20, unit="regions"))
                step()
            except KeyboardInterrupt:
                screen.trouble("interrupted", hint="run it again")
        """
    )
    training.until(lambda text: "searching: 1 of 20 regions" in text)
    os.kill(training.pid, number)
    code, text = training.end()
    assert (code, text) == (0, "before\nerror: interrupted\nhint: run it again")
