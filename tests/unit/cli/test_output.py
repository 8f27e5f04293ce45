"""Output streams: colors, control characters and closed readers."""

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
    """A pipe with a closed reader."""

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
def test_colors_are_used_only_on_terminals_that_support_them(stream, environ, wanted):
    assert supports_color(stream, environ) is wanted


def test_output_continues_after_a_broken_pipe():
    out = Output(Unread())
    out.lines(["one"])
    out.lines(["two"])


def test_display_command_exits_on_a_broken_pipe():
    with pytest.raises(typer.Exit) as end:
        Output(Unread(), quits=True).lines(["one"])
    assert end.value.exit_code == BROKEN_PIPE_EXIT_CODE


def test_buffered_output_is_discarded_after_a_broken_pipe():
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stream:
        os.close(read_end)
        Output(stream).lines(["one"])
        assert os.fstat(stream.fileno()).st_rdev == Path(os.devnull).stat().st_rdev


def test_process_exits_cleanly_after_its_reader_closes():
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


def test_error_shows_problems_and_hint_on_stderr(capsys):
    err = RecipeError("r.yaml has 2 problems", problems=["r.yaml:1: a", "r.yaml:2: b"], hint="look there")
    Screen().error(err)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: r.yaml has 2 problems\n  r.yaml:1: a\n  r.yaml:2: b\nhint: look there\n"


def test_json_mode_writes_the_error_as_only_document(capsys):
    Screen(json_mode=True).error(UsageError("no", hint="yes"))
    assert json.loads(capsys.readouterr().out) == {
        "error": {"type": "UsageError", "message": "no", "hint": "yes", "exit_code": 2, "details": []}
    }


def test_problem_identical_to_the_message_is_not_repeated(capsys):
    Screen().error(RecipeError("--set nope: no such field", problems=["--set nope: no such field"]))
    assert capsys.readouterr().err == "error: --set nope: no such field\n"


def test_capacity_error_lists_candidates_with_error_codes(capsys):
    short = "us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity)"
    long = f"{short}: launching 2 instances: we have none (InsufficientInstanceCapacity)"
    Screen().error(NoCapacityError("none", tried=[long]))
    assert capsys.readouterr().err == f"error: none\n  {short}\n"


def test_host_key_error_json_contains_both_fingerprints(capsys):
    Screen(json_mode=True).error(HostKeyError("another key", expected=["SHA256:a"], got="SHA256:b"))
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["details"] == ["expected SHA256:a", "got SHA256:b"]
    assert "expected SHA256:a\n  got SHA256:b" in told.err


def test_hosts_file_problems_are_listed_as_error_details(capsys):
    err = HostsFileError("hosts.yaml has 2 problems", problems=("hosts.yaml:1: a", "hosts.yaml:2: b"), hint="look")
    Screen(json_mode=True).error(err)
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["details"] == ["hosts.yaml:1: a", "hosts.yaml:2: b"]
    assert told.err == "error: hosts.yaml has 2 problems\n  hosts.yaml:1: a\n  hosts.yaml:2: b\nhint: look\n"


@pytest.mark.parametrize("prefix", ["", "[rank 1] "])
@pytest.mark.parametrize(
    "lines", [[], ["a"], ["a", "", "\tb"], ["a", "\x1b[31mred", "c\u2028d", "\u202e"], ["ä€"]], ids=str
)
def test_block_of_lines_equals_the_same_lines_one_by_one(lines, prefix):
    one_by_one, block = io.StringIO(), io.StringIO()
    Output(one_by_one, colour=False).lines(f"{prefix}{line}" for line in lines)
    Output(block, colour=False).block(lines, prefix)
    assert block.getvalue() == one_by_one.getvalue()


@pytest.mark.parametrize(
    ("width", "shown"), [(20, "one two three four\n  five six\n"), (None, "one two three four five six\n")]
)
def test_prose_is_wrapped_on_a_terminal_only(monkeypatch, capsys, width, shown):
    monkeypatch.setattr(Screen, "width", width)
    Screen().wrapped(["one two three four five six"])
    assert capsys.readouterr().out == shown
