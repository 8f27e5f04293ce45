"""Streams: colours, control characters, readers that go away."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cloudgpu.cli.terminal.output import BROKEN_PIPE_EXIT_CODE, Output, supports_color
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import HostKeyError, NoCapacityError, RecipeError, UsageError
from cloudgpu.hosts.loading import HostsFileError


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Unread(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError


@pytest.mark.parametrize(
    ("stream", "environ", "wanted"),
    [
        (Terminal(), {}, True),
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(stream, environ, wanted):
    assert supports_color(stream, environ) is wanted


def test_work_goes_on_when_nobody_reads():
    out = Output(Unread())
    out.lines(["one"])
    out.lines(["two"])


def test_a_command_that_only_shows_ends_with_its_reader():
    with pytest.raises(typer.Exit) as end:
        Output(Unread(), quits=True).lines(["one"])
    assert end.value.exit_code == BROKEN_PIPE_EXIT_CODE


def test_what_is_still_buffered_goes_nowhere():
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        os.close(read_end)
        Output(stream).lines(["one"])
        assert os.fstat(stream.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def test_a_reader_that_leaves_breaks_nothing_at_the_end_of_the_process():
    program = """
import sys
from cloudgpu.cli.terminal.output import Output
out = Output(sys.stdout)
for number in range(100_000):
    out.lines([f"line {number}"])
sys.stderr.write("done")
"""
    read_end, write_end = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert os.read(read_end, 6) == b"line 0"
    os.close(read_end)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"done")


def test_an_error_says_what_and_what_next(capsys):
    err = RecipeError("r.yaml has 2 problems", problems=["r.yaml:1: a", "r.yaml:2: b"], hint="look there")
    Screen().error(err)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: r.yaml has 2 problems\n  r.yaml:1: a\n  r.yaml:2: b\nhint: look there\n"


def test_an_error_is_the_only_document(capsys):
    Screen(json_mode=True).error(UsageError("no", hint="yes"))
    assert json.loads(capsys.readouterr().out) == {
        "error": {"type": "UsageError", "message": "no", "hint": "yes", "exit_code": 2, "details": []}
    }


def test_what_the_message_says_is_not_repeated(capsys):
    Screen().error(RecipeError("--set nope: no such field", problems=["--set nope: no such field"]))
    assert capsys.readouterr().err == "error: --set nope: no such field\n"


def test_candidates_are_listed_with_their_codes(capsys):
    short = "us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity)"
    long = f"{short}: launching 2 instances: we have none (InsufficientInstanceCapacity)"
    Screen().error(NoCapacityError("none", tried=[long]))
    assert capsys.readouterr().err == f"error: none\n  {short}\n"


def test_both_fingerprints_are_in_the_document(capsys):
    Screen(json_mode=True).error(HostKeyError("another key", expected=["SHA256:a"], got="SHA256:b"))
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["details"] == ["expected SHA256:a", "got SHA256:b"]
    assert "expected SHA256:a\n  got SHA256:b" in told.err


def test_the_problems_of_an_inventory_are_its_details(capsys):
    err = HostsFileError("hosts.yaml has 2 problems", problems=("hosts.yaml:1: a", "hosts.yaml:2: b"), hint="look")
    Screen(json_mode=True).error(err)
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["details"] == ["hosts.yaml:1: a", "hosts.yaml:2: b"]
    assert told.err == "error: hosts.yaml has 2 problems\n  hosts.yaml:1: a\n  hosts.yaml:2: b\nhint: look\n"
