"""Every command passes the width of its screen to the renderers that adapt to it."""

import ast
import importlib
import inspect
import io
import sys
from pathlib import Path

import pytest

import cloudgpu.cli.commands
import cloudgpu.cli.render
from cloudgpu.cli.main import main


def adaptive_renderers() -> set[str]:
    """Return the full names of the public render functions that take a width."""
    folder = Path(cloudgpu.cli.render.__file__).parent
    modules = [importlib.import_module(f"cloudgpu.cli.render.{path.stem}") for path in folder.glob("[a-z]*.py")]
    return {
        f"{module.__name__}.{name}"
        for module in modules
        for name, one in vars(module).items()
        if inspect.isfunction(one) and not name.startswith("_") and "width" in inspect.signature(one).parameters
    }


def calls() -> list[tuple[str, str]]:
    """Return the full name and the source of every call of an imported function in a command."""
    found = []
    for path in sorted(Path(cloudgpu.cli.commands.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found += [
            (imported[node.func.id], f"{path.name}: {ast.unparse(node)}")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported
        ]
    return found


def test_every_command_passes_the_width_of_the_terminal():
    adaptive = adaptive_renderers()
    called = [(name, source) for name, source in calls() if name in adaptive]
    assert [source for _, source in called if "width" not in source] == []
    assert len(called) > 12


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "columns", "fits"), [(Terminal, 60, True), (Terminal, 200, False), (io.StringIO, 60, False)]
)
def test_table_has_the_width_of_the_terminal(monkeypatch, tmp_path, stream, columns, fits):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "a-long-path-to-the-state-home"))
    monkeypatch.setattr(sys, "stdout", shown := stream())
    assert main(["rehearsal", "fault", "list"]) == 0
    assert (max(map(len, shown.getvalue().splitlines())) <= 60) == fits
