"""A rehearsal server in this process for comparisons with recorded answers of AWS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.endpoint.conftest import Rig, rig_in
from tests.rehearsal.fidelity.situations import Situation


def situation_in(rig: Rig) -> Situation:
    def client(service: str, region: str = "us-east-1") -> Any:
        config: dict[str, Any] = {"parameter_validation": False}
        if service == "s3":
            config["s3"] = {"addressing_style": "path"}
        return rig.aws(service, region, **config)

    return Situation(client, rig.ami(), rig.subnet())


@pytest.fixture(scope="module")
def situation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Situation]:
    """One rehearsal cloud for all cases of a module; each case creates what it needs."""
    with rig_in(tmp_path_factory.mktemp("rig")) as rig:
        yield situation_in(rig)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A rehearsal cloud for one test; never beside `situation`, because moto's state is shared in a process."""
    with rig_in(tmp_path) as started:
        yield started
