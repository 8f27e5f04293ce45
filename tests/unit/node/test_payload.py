import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cloudgpu.node.agent
from cloudgpu.node.payload import agent_name, agent_source

AGENT = Path(cloudgpu.node.agent.__file__).parent
SOURCES = sorted(AGENT.rglob("*.py"))


def test_the_same_sources_are_the_same_bytes() -> None:
    first = agent_source()
    agent_source.cache_clear()
    assert agent_source() == first
    assert agent_name().startswith("agent-")
    assert len(agent_name()) == len("agent-") + 16 + len(".py")


def test_every_module_travels() -> None:
    with zipfile.ZipFile(io.BytesIO(agent_source())) as archive:
        names = set(archive.namelist())
    assert {f"cloudgpu_agent/{path.relative_to(AGENT)}" for path in SOURCES if path.name != "__main__.py"} | {
        "__main__.py"
    } == names


def test_it_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / agent_name()
    path.write_bytes(agent_source())
    shown = subprocess.run([sys.executable, "-I", "-S", str(path), "nonsense"], capture_output=True, check=False)
    assert shown.returncode == 1
    assert b"unknown verb" in shown.stdout
    assert shown.stderr == b""


def test_it_is_written_for_python_3_8_and_the_standard_library() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), (path, names)


def test_annotations_are_never_evaluated() -> None:
    # `dict[str, int]` as an annotation is fine for Python 3.8 only if nobody looks at it.
    for path in SOURCES:
        lines = path.read_text().splitlines()
        assert path.name in ("__init__.py", "__main__.py", "errors.py") or "from __future__ import annotations" in lines


@pytest.mark.parametrize("given", [b'{"secrets": {"PASSWORD": "hunter2"', b'"hunter2"', b"\xffhunter2"])
def test_input_that_is_no_request_is_never_shown(tmp_path: Path, given: bytes) -> None:
    path = tmp_path / agent_name()
    path.write_bytes(agent_source())
    shown = subprocess.run([sys.executable, str(path), "start"], input=given, capture_output=True, check=False)
    assert shown.returncode == 1
    assert b"standard input is not" in shown.stdout
    assert b"hunter2" not in shown.stdout + shown.stderr
    assert shown.stderr == b""
