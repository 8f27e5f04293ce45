"""The recipe in a run's record: read back, or named as damaged."""

from datetime import UTC, datetime

import pytest

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.errors import StateError
from cloudgpu.state.cluster_and_run_records import RunRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
GOOD = {
    "schema": 1,
    "name": "tiny",
    "resources": {"gpu": "V100:8"},
    "launch": {"with": "torchrun", "command": "train.py"},
}


def record(resolved):
    return RunRecord("tiny-1", "lab", "tiny", "r.yaml", "ann", "", "aws", NOW, resolved=resolved)


def test_a_recipe_comes_back():
    assert recipe_of(record(GOOD)).name == "tiny"


@pytest.mark.parametrize("change", [{"schema": True}, {"budget": {"expiry": "9999d"}}, {"launch": 5}])
def test_one_that_cannot_be_read_is_a_damaged_record(change):
    with pytest.raises(StateError, match="the recipe in the record of run tiny-1 cannot be read") as caught:
        recipe_of(record({**GOOD, **change}))
    assert next(iter(change)) in caught.value.message
    assert "cloudgpu down --run tiny-1" in caught.value.hint
