"""Untrusted text reaches the terminal only as printable characters, in every kind of message."""

import ast
import importlib
import inspect
import io
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudgpu.cli
from cloudgpu import errors
from cloudgpu.app.execute import NodeOutcome
from cloudgpu.cli.commands.nodes import line_printer, show_outcomes
from cloudgpu.cli.main import main
from cloudgpu.cli.terminal.output import Color, ColoredText, Output, ask, ask_for_text, plain_panel
from cloudgpu.cli.terminal.rich_drawing import framed_panel
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.run.progress import LogFolder, ProgressEvent
from tests.source_code import nodes_of
from tests.unit.cli.hostile import HOSTILE, OURS, check, check_characters, hints, value, without_our_colours

CLI = Path(cloudgpu.cli.__file__).parent


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(params=["terminal", "terminal without colours", "pipe"])
def streams(request, monkeypatch) -> Callable[[], list[io.StringIO]]:
    """Return a function that replaces stdout and stderr. The test calls it, because pytest replaces them first."""

    def replaced() -> list[io.StringIO]:
        made = [io.StringIO() if request.param == "pipe" else Terminal() for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", made[0])
        monkeypatch.setattr(sys, "stderr", made[1])
        if request.param == "terminal":
            monkeypatch.delenv("NO_COLOR")
            monkeypatch.setenv("TERM", "xterm")
        return made

    return replaced


def filled(kind: type) -> list[object]:
    """Return instances of a dataclass with hostile text in every field, one for each literal choice."""
    types = hints(kind)
    choices = {name: typing.get_args(hint) for name, hint in types.items() if typing.get_origin(hint) is typing.Literal}
    values = {name: value(hint, name) for name, hint in types.items() if name not in choices}
    rows: list[dict[str, object]] = [values]
    for name, options in choices.items():
        rows = [{**row, name: option} for row in rows for option in options]
    return [kind(**row) for row in rows]


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def every_error() -> list[errors.CloudGpuError]:
    """Return one instance of every error class with hostile text in every text argument."""
    for module in ("hosts.loading", "ssh.connection", "ssh.handshake", "run.agent"):
        importlib.import_module(f"cloudgpu.{module}")
    made = []
    for kind in (errors.CloudGpuError, *subclasses(errors.CloudGpuError)):
        parameters = inspect.signature(kind.__init__).parameters
        texts = {
            name: HOSTILE if parameter.annotation in (str, "str") else (HOSTILE, HOSTILE)
            for name, parameter in parameters.items()
            if re.fullmatch(
                r"str|(Sequence|tuple)\[str.*\]", inspect.formatannotation(parameter.annotation).rpartition(".abc.")[2]
            )
        }
        assert {"message", "hint"} <= texts.keys()
        made.append(kind(texts.pop("message"), **texts))
    return made


@pytest.mark.parametrize("err", every_error(), ids=lambda err: type(err).__name__)
@pytest.mark.parametrize("json_mode", [False, True])
def test_every_error_is_printed_without_control_characters(err, json_mode, streams):
    shown = streams()
    Screen(json_mode=json_mode).error(err)
    assert "begin" in check(*shown)
    assert sum(line.startswith("hint:") for line in without_our_colours(shown[1].getvalue()).splitlines()) == 1
    if json_mode:
        assert json.loads(shown[0].getvalue())["error"]["message"] == HOSTILE


PRINTED = [kind for kind in typing.get_args(ProgressEvent) if kind is not LogFolder]


@pytest.mark.parametrize("kind", PRINTED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_event_is_printed_without_control_characters(kind, verbose, streams):
    shown = streams()
    made = filled(kind)
    screen = Screen(verbose=verbose)
    for one in made:
        screen.emit(one)
    check(*shown)
    lines = "".join(stream.getvalue() for stream in shown).count("\n")
    assert lines <= len(made)


def test_every_screen_method_escapes_control_characters(streams):
    shown = streams()
    screen = Screen()
    screen.line(HOSTILE)
    screen.lines([HOSTILE, (ColoredText(HOSTILE, "red"), HOSTILE)])
    screen.wrapped([HOSTILE, HOSTILE])
    screen.error_lines([HOSTILE])
    screen.block([HOSTILE, HOSTILE], "[rank 0] ")
    screen.records([json.dumps({"line": HOSTILE})])
    screen.remark(HOSTILE)
    screen.hint(HOSTILE)
    screen.trouble(HOSTILE, [HOSTILE], HOSTILE)
    screen.panel(HOSTILE, [(HOSTILE, HOSTILE), ("", HOSTILE)], "red")
    screen.document({HOSTILE: HOSTILE})
    line_printer(screen)(1, False, HOSTILE)
    line_printer(screen)(1, True, HOSTILE)
    check(*shown)


def test_all_public_screen_methods_are_covered():
    """A new public method of the screen fails here until the test above covers it."""
    # `working` only emits stages, which the test of every event covers.
    tried = {
        "line",
        "lines",
        "wrapped",
        "error_lines",
        "block",
        "records",
        "remark",
        "hint",
        "trouble",
        "panel",
        "document",
        "emit",
        "error",
        "raw",
        "working",
    }
    assert {name for name, one in vars(Screen).items() if inspect.isfunction(one) and name[0] != "_"} == tried


@pytest.mark.parametrize("colour", typing.get_args(Color))
@given(text=st.text())
def test_foreign_text_cannot_add_or_remove_colors(colour, text):
    stream = io.StringIO()
    Output(stream, colour=True).lines([(ColoredText("ours", colour), text, ColoredText(text, colour))])
    shown = stream.getvalue()
    assert len(OURS.findall(shown)) == 2
    assert shown.count("\x1b") == 4
    assert shown.count("\n") == 1
    assert all(char.isprintable() or char == "\t" for char in without_our_colours(shown)[:-1])


@given(rows=st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=3), columns=st.integers(30, 120))
def test_framed_panel_prints_only_printable_text_inside_its_border(rows, columns):
    stream = io.StringIO()
    Output(stream, colour=True).lines(framed_panel("title", rows, "green", columns))
    shown = without_our_colours(stream.getvalue())
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert {line[:1] for line in shown.splitlines()[1:]} <= set("╭│╰")


@pytest.mark.parametrize("row", [("a", "x\ny"), ("a\ny", "x"), ("", "\n\n")])
def test_newline_in_a_value_starts_no_new_frame_row(row):
    assert len(framed_panel("title", [row], "green", 60)) == len(framed_panel("title", [("a", "x y")], "green", 60))


@given(rows=st.lists(st.tuples(st.just("label"), st.text()), min_size=1, max_size=3))
def test_plain_panel_indents_every_line_of_a_value(rows):
    stream = io.StringIO()
    Output(stream).lines(plain_panel("title", rows, 60))
    assert all(line.startswith(("  ", "title")) or not line for line in stream.getvalue().split("\n"))


def test_node_output_is_unchanged_only_in_a_pipe(streams):
    shown = streams()
    show_outcomes([NodeOutcome(0, 1, HOSTILE, HOSTILE)], Screen())
    if shown[0].isatty():
        check_characters(*shown)  # the program on the node wrote these lines
    else:
        assert shown[0].getvalue() == HOSTILE
        check_characters(shown[1])


@pytest.mark.parametrize("asked", [ask, ask_for_text])
def test_prompts_are_printed_without_control_characters(asked, streams, monkeypatch):
    shown = streams()
    monkeypatch.setattr("builtins.input", lambda _prompt="": "n")
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _prompt="": "n", raising=False)
    asked(HOSTILE)
    assert "begin" in check(*shown)


def commands(app=None, path=()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command, including groups."""
    from typer.main import get_command

    from cloudgpu.cli.main import app as root

    found = app or get_command(root)
    yield path
    for name, one in getattr(found, "commands", {}).items():
        yield from commands(one, (*path, name))


@pytest.mark.parametrize("path", sorted(commands()), ids=" ".join)
@pytest.mark.parametrize("streams", ["terminal"], indirect=True)
def test_echoed_arguments_are_printed_without_control_characters(path, streams, home):
    shown = streams()
    assert main([*path, HOSTILE, f"--{HOSTILE}", "--json"]) == 2
    assert check(*shown)


WRITERS = re.compile(r"^(print|typer\.(echo|secho|confirm|prompt)|sys\.(stdout|stderr)\.(write|writelines)|click\..*)$")


def direct_writes(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines that write to the terminal without using `Output`."""
    for node in nodes:
        if isinstance(node, ast.Call) and WRITERS.match(ast.unparse(node.func)):
            yield node.lineno


def test_direct_write_check_detects_print_and_echo():
    bad = ["print('x')", "typer.echo('x')", "sys.stderr.write('x')", "typer.confirm('x')"]
    assert [list(direct_writes(nodes_of(one))) for one in bad] == [[1]] * 4
    assert list(direct_writes(nodes_of("screen.line('x')"))) == []


def test_only_the_terminal_module_writes_to_the_terminal():
    layers = (
        "cli",
        "app",
        "plan",
        "backends",
        "engine",
        "aws",
        "run",
        "ssh",
        "ledger",
        "recipe",
        "hosts",
        "catalog",
        "settings",
        "state",
    )
    assert all((CLI.parent / layer).is_dir() for layer in layers)
    # These write to another program, never to a terminal.
    others = {"cli/terminal/output.py", "ssh/transfer/node_tree.py", "engine/plugin/__main__.py"}
    found = [
        f"{path.relative_to(CLI.parent)}:{line}"
        for layer in layers
        for path in sorted((CLI.parent / layer).rglob("*.py"))
        if str(path.relative_to(CLI.parent)) not in others
        for line in direct_writes(nodes_of(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_only_the_output_module_contains_escape_sequences():
    found = [path.name for path in CLI.rglob("*.py") if re.search(r"\\(x1b|033|u001b|e\[)", path.read_text())]
    assert found == ["output.py"]
