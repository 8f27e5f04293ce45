"""Programs in strings use names that exist; import checkers and refactoring tools ignore strings."""

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from cloudgpu.rehearsal.aws_api.store import MOVED_MODULES
from tests.source_code import nodes_of, syntax_nodes

ROOT = Path(__file__).parents[3]
FOLDERS = ("cloudgpu", "infra", "scripts", "benchmarks", "tests")
IMPORT_FROM = re.compile(r"\bfrom (cloudgpu(?:\.\w+)*) import (\w+(?:, \w+)*)")
IMPORT = re.compile(r"\bimport (cloudgpu(?:\.\w+)*)(?![\w{.])")
MODULE = re.compile(r"^cloudgpu(?:\.\w+)+$")
NO_MODULES = {"cloudgpu.cluster", "cloudgpu.d", "cloudgpu.toml", *MOVED_MODULES}
"""A Docker label, a directory, a file, and modules as snapshots of earlier versions name them."""


@cache
def strings(path: Path) -> tuple[str, ...]:
    """Return every string of a source file, including docstrings."""
    # The trees of the tests are not kept: only these tests read them, and they take much memory.
    nodes = syntax_nodes(path) if "cloudgpu" in path.relative_to(ROOT).parts else nodes_of(path.read_text("utf-8"))
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def imported(text: str) -> Iterator[tuple[str, str]]:
    """Return modules and the names that a text imports from them; the name is empty for the module itself."""
    for match in IMPORT_FROM.finditer(text):
        yield from ((match[1], name) for name in match[2].split(", "))
    for match in IMPORT.finditer(text):
        yield match[1], ""
    if MODULE.match(text) and text not in NO_MODULES:
        # A module or a member of one, as tests name it for `monkeypatch`.
        names = text.split(".")
        depth = next(depth for depth in range(len(names), 0, -1) if is_module(".".join(names[:depth])))
        yield ".".join(names[:depth]), "".join(names[depth : depth + 1])


def unknown_attributes(texts: Iterable[str]) -> list[str]:
    """Return each `module.attribute` of programs in these strings that is missing from a module which they import."""
    program = "\n".join(texts)
    modules = {
        name: f"{match[1]}.{name}"
        for match in IMPORT_FROM.finditer(program)
        for name in match[2].split(", ")
        if is_module(f"{match[1]}.{name}")
    }
    return sorted(
        {
            f"{module}.{attribute}"
            for name, module in modules.items()
            for attribute in re.findall(rf"(?<![\w./]){name}\.([A-Za-z_]\w*)", program)
            if missing(module, attribute)
        }
    )


@cache
def is_module(name: str) -> bool:
    """Return True if there is a module of this name."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def missing(module: str, name: str) -> bool:
    """Return True if the import would fail."""
    if not is_module(module):
        return True
    if not name:
        return False
    found = importlib.import_module(module)
    if hasattr(found, name):
        return False
    return not is_module(f"{module}.{name}")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_inside_a_string_resolves(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {module} {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in (Path(__file__).name, "test_dead_code.py")
        for text in strings(path)
        for module, name in imported(text)
        if missing(module, name)
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["scripts", "benchmarks", "tests"])
def test_every_attribute_inside_a_string_exists(folder: str) -> None:
    """Programs started by tests patch module attributes; patching a missing name would have no effect."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != Path(__file__).name
        for name in unknown_attributes(strings(path))
    ]
    assert wrong == []


def test_patch_of_a_missing_name_is_detected() -> None:
    program = ["from cloudgpu.ssh import fanout, host_key\n", "fanout.gone = host_key.HostKey\n"]
    assert "cloudgpu.ssh.fanout.gone" in unknown_attributes(program)


def test_import_of_a_missing_name_is_detected() -> None:
    assert list(imported("from cloudgpu.ssh import nothing, fanout\n")) == [
        ("cloudgpu.ssh", "nothing"),
        ("cloudgpu.ssh", "fanout"),
    ]
    assert missing("cloudgpu.ssh", "nothing")
    assert missing("cloudgpu.no_such_package.module", "")
    assert not missing("cloudgpu.ssh", "fanout")
