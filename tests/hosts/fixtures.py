"""The lab that a test module shares: in its conftest, `from tests.hosts.fixtures import lab_hosts`."""

import os
from collections.abc import Iterator

import pytest

from tests.hosts.lab import Lab, Spec, lab, missing_tools


@pytest.fixture(scope="session")
def lab_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two hosts with eight V100 each, one with four T4 on another port, one behind the first, one without a GPU."""
    lacking = missing_tools()
    if lacking:
        reason = f"hosts of one's own need {', '.join(lacking)}"
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
