"""The scripted cloud of the use-case tests, and the state home that an earlier version wrote."""

import shutil
from pathlib import Path

import pytest

from cloudgpu.paths import Home
from tests.unit.app.conftest import *  # noqa: F403 - fixtures
from tests.unit.state import format1


@pytest.fixture
def frozen(tmp_path: Path) -> Home:
    """A copy of the state home in `fixtures/format1`."""
    return Home(shutil.copytree(format1.ROOT, tmp_path / "frozen"))
