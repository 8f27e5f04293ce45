"""The recipe in a run record is read back or reported as damaged."""

from datetime import UTC, datetime

import pytest

from cloudgpu.errors import StateError
from cloudgpu.run.job import recipe_of
from cloudgpu.state.run_records import RunRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
GOOD = {
    "schema": 1,
    "name": "tiny",
    "resources": {"gpu": "V100:8"},
    "launch": {"with": "torchrun", "command": "train.py"},
}


def record(resolved):
    return RunRecord("tiny-1", "lab", "tiny", "r.yaml", "ann", "", "aws", NOW, resolved=resolved)


def test_recipe_is_read_back_from_run_record():
    assert recipe_of(record(GOOD)).name == "tiny"


@pytest.mark.parametrize("change", [{"schema": True}, {"budget": {"expiry": "9999d"}}, {"launch": 5}])
def test_unreadable_recipe_is_reported_as_damaged_record(change):
    with pytest.raises(StateError, match="the recipe in the record of run tiny-1 cannot be read") as caught:
        recipe_of(record({**GOOD, **change}))
    assert next(iter(change)) in caught.value.message
    assert "cloudgpu down --run tiny-1" in caught.value.hint
