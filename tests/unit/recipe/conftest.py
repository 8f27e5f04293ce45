from collections.abc import Callable
from pathlib import Path

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.recipe import loader

GOOD = """\
schema: 1
name: tiny
resources:
  gpu: V100:8
launch:
  with: torchrun
  command: train.py --epochs {epochs}
params:
  epochs: 3
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], Path]:
    """Write a recipe below a temporary current directory."""
    monkeypatch.chdir(tmp_path)

    def write_it(content: str | bytes) -> Path:
        path = tmp_path / "recipes" / "x" / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_it


@pytest.fixture
def problems(write: Callable[[str | bytes], Path]) -> Callable[[str | bytes], list[str]]:
    """Return the problems reported when loading this text."""

    def load_it(content: str | bytes) -> list[str]:
        with pytest.raises(RecipeError) as caught:
            loader.load(write(content))
        assert caught.value.exit_code == 2
        return list(caught.value.problems) or [caught.value.message]

    return load_it
