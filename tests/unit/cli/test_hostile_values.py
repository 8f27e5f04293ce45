"""Every renderer, found by introspection, is called with hostile text in every argument."""

import importlib
import inspect
import io
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator

import pytest

import cloudgpu.cli.commands
import cloudgpu.cli.render
from cloudgpu.cli.terminal.output import ColoredText, Output
from cloudgpu.cli.terminal.screen import Screen
from tests.unit.cli.hostile import HOSTILE, check, check_characters, hints, value

# Not renderers: they parse user input, or return a document that `json.dumps` escapes.
RENDERER = "(_lines|_question|_error|_csv|_printer|_outcomes|_label|_block)"
OTHERS = {"read_period", "group_by_output", "told"}
# Arguments that are plain mappings, whose keys cannot be derived from their types.
GIVEN = {
    "active_fault_lines": {"now": {"names": [HOSTILE], "rules": [{HOSTILE: HOSTILE}], "capacity": {HOSTILE: HOSTILE}}},
}


def renderers() -> Iterator[Callable]:
    """Yield every public function of the render modules, and those of the command modules that return text or lines."""
    for package, ending in ((cloudgpu.cli.render, ""), (cloudgpu.cli.commands, RENDERER)):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, one in vars(module).items():
                own = inspect.isfunction(one) and one.__module__ == module.__name__
                if (
                    own
                    and re.fullmatch(rf"[a-z]\w*{ending}", name)
                    and not name.endswith("_json")
                    and name not in OTHERS
                ):
                    yield one


def named(one: Callable) -> str:
    return f"{one.__module__.rpartition('.')[2]}.{one.__name__}"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("renderer", list(renderers()), ids=named)
def test_every_renderer_escapes_control_characters(renderer, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    screen = Screen(colour=True)
    types = hints(renderer)
    returned = types.pop("return")
    given = {name: screen if hint is Screen else value(hint, name) for name, hint in types.items()}
    shown = renderer(**{**given, **GIVEN.get(renderer.__name__, {})})
    if returned not in (int, type(None)):
        show(screen, shown)
    check_characters(terminal) if renderer.__module__.endswith(".nodes") else check(terminal)


def show(screen: Screen, shown: object) -> None:
    """Print the return value of a renderer the way a command would."""
    if isinstance(shown, Callable):
        shown(2, True, HOSTILE)
    elif isinstance(shown, Exception):
        screen.error(shown)
    elif isinstance(shown, str):
        screen.line(shown)
    else:
        rows = list(shown)
        if rows and isinstance(rows[0], tuple) and not any(isinstance(part, ColoredText) for part in rows[0]):
            screen.panel("title", rows, "green")
        else:
            screen.lines(rows)


def test_renderer_discovery_finds_over_60_functions():
    assert len(list(renderers())) > 60


def test_hostile_output_check_detects_raw_control_characters():
    terminal = Terminal()
    terminal.write(HOSTILE)
    with pytest.raises(AssertionError):
        check(terminal)
    Output(safe := Terminal(), colour=True).lines(
        [ColoredText("ours", "red").text, (ColoredText("ours", "red"), HOSTILE)]
    )
    assert "ours" in check(safe)
