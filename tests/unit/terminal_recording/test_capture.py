"""What a command shows on a pseudo-terminal becomes frames."""

import sys

from terminal_recording.capture import record
from terminal_recording.frames import Run, text_of

PROGRAM = r"""
import os, sys
print("\x1b[1m==> train\x1b[0m  \x1b[2mepoch 1\x1b[0m")
print("gone\r\x1b[K\x1b[33mwarn\x1b[0m", os.get_terminal_size().columns, os.environ["ONLY"])
sys.exit(3)
"""


def test_screen_styles_size_and_exit_code_of_a_command():
    argv = [sys.executable, "-c", PROGRAM]
    code, frames = record(argv, {"ONLY": "this"}, columns=40, rows=6, prompt="$ program")
    assert code == 3
    assert text_of(frames[0].rows) == "$ program"
    assert frames[-1].rows == (
        (Run(0, "$ program"),),
        (Run(0, "==> train", "bold"), Run(11, "epoch 1", "dim")),
        (Run(0, "warn", "yellow"), Run(5, "40 this")),
    )
    assert [one.at_s for one in frames] == sorted(one.at_s for one in frames)
