"""Every command passes the width of its screen to the renderers that adapt to it."""

import ast
import importlib
import inspect
import io
import pkgutil
import sys
from pathlib import Path

import pytest

import cloudgpu.cli.commands
import cloudgpu.cli.render
from cloudgpu.cli.main import main


def adaptive_renderers() -> set[str]:
    """Return the full names of the public functions of commands and their renderers that take a width."""
    modules = [
        importlib.import_module(found.name)
        for package in (cloudgpu.cli.render, cloudgpu.cli.commands)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return {
        f"{module.__name__}.{name}"
        for module in modules
        for name, one in vars(module).items()
        if inspect.isfunction(one) and not name.startswith("_") and "width" in inspect.signature(one).parameters
    }


def calls() -> list[tuple[str, str]]:
    """Return the full name and the source of every call of a function in a command."""
    found = []
    folder = Path(cloudgpu.cli.commands.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        module = ".".join(("cloudgpu.cli.commands", *path.relative_to(folder).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        known = {
            node.name: f"{module.removesuffix('.__init__')}.{node.name}"
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        } | {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found += [
            (known[node.func.id], f"{path.name}: {ast.unparse(node)}")
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known
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
