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


def test_agent_bundle_is_deterministic() -> None:
    first = agent_source()
    agent_source.cache_clear()
    assert agent_source() == first
    assert agent_name().startswith("agent-")
    assert len(agent_name()) == len("agent-") + 16 + len(".py")


def test_agent_bundle_contains_every_module() -> None:
    with zipfile.ZipFile(io.BytesIO(agent_source())) as archive:
        names = set(archive.namelist())
    assert {f"cloudgpu_agent/{path.relative_to(AGENT)}" for path in SOURCES if path.name != "__main__.py"} | {
        "__main__.py"
    } == names


def test_agent_bundle_runs_without_installed_packages(tmp_path: Path) -> None:
    path = tmp_path / agent_name()
    path.write_bytes(agent_source())
    shown = subprocess.run([sys.executable, "-I", "-S", str(path), "nonsense"], capture_output=True, check=False)
    assert shown.returncode == 1
    assert b"unknown verb" in shown.stdout
    assert shown.stderr == b""


def test_agent_uses_only_python_3_8_and_the_standard_library() -> None:
    for path in SOURCES:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert all(name.partition(".")[0] in sys.stdlib_module_names for name in names), (path, names)


def test_agent_modules_postpone_annotation_evaluation() -> None:
    # Python 3.8 accepts `dict[str, int]` as an annotation only if it is never evaluated.
    for path in SOURCES:
        lines = path.read_text().splitlines()
        assert path.name in ("__init__.py", "__main__.py", "errors.py") or "from __future__ import annotations" in lines


@pytest.mark.parametrize("given", [b'{"secrets": {"PASSWORD": "hunter2"', b'"hunter2"', b"\xffhunter2"])
def test_invalid_agent_input_is_rejected_without_being_shown(tmp_path: Path, given: bytes) -> None:
    path = tmp_path / agent_name()
    path.write_bytes(agent_source())
    shown = subprocess.run([sys.executable, str(path), "start"], input=given, capture_output=True, check=False)
    assert shown.returncode == 1
    assert b"standard input is not" in shown.stdout
    assert b"hunter2" not in shown.stdout + shown.stderr
    assert shown.stderr == b""
