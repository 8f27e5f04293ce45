"""The allowlist of unused names: new unused names and stale entries are both errors."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
UNUSED = {"cloudgpu/a.py:one": "cloudgpu/a.py:3: unused function one", "cloudgpu/a.py:two": "cloudgpu/a.py:9: ..."}


@pytest.fixture(scope="module")
def dead_code() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dead_code", ROOT / "scripts/dead_code.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_unlisted_unused_name_is_reported_with_its_location(dead_code: ModuleType) -> None:
    assert dead_code.problems(UNUSED, ["*:two"]) == ["cloudgpu/a.py:3: unused function one"]
    assert dead_code.problems(UNUSED, ["cloudgpu/a.py:*"]) == []


def test_stale_allowlist_entry_is_reported(dead_code: ModuleType) -> None:
    (stale,) = dead_code.problems({}, ["cloudgpu/a.py:*"])
    assert "cloudgpu/a.py:* does not match any unused name" in stale


def test_name_used_only_by_tests_counts_as_unused(
    dead_code: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "cloudgpu/a.py": "def one(): pass\ndef two(): pass\ndef three(): pass\nprint(two)\n",
        "tests/test_a.py": "from cloudgpu.a import one\none()\n",
        "scripts/b.py": "from cloudgpu.a import three\nthree()\ndef four(): pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(dead_code, "ROOT", tmp_path)
    assert dead_code.unused_names() == {"cloudgpu/a.py:one": "cloudgpu/a.py:1: unused function one"}
