"""The `lab_hosts` fixture. Use it with `from tests.hosts.fixtures import lab_hosts` in a conftest."""

import os
from collections.abc import Iterator

import pytest

from tests.hosts.lab import Lab, Spec, lab, missing_tools


@pytest.fixture(scope="session")
def lab_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Five hosts: two with eight V100, one with four T4 and another port, one behind a jump host, one without GPUs."""
    missing = missing_tools()
    if missing:
        reason = f"the simulated hosts need {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    specs = [
        Spec("red", gpus="V100:8", users=("lab", "ana")),
        Spec("blue", gpus="V100:8", users=("lab", "ana")),
        Spec("green", gpus="T4:4", port=2222),
        Spec("deep", gpus="A100:4", behind="red"),
        Spec("bare"),
    ]
    with lab(tmp_path_factory.mktemp("lab"), specs) as hosts:
        yield hosts
