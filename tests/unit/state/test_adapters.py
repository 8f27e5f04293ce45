"""The pydantic adapters accept exactly what `decode_as` accepts, so a field has one set of bounds everywhere."""

import json
import re
from dataclasses import asdict
from typing import Annotated, Any, Literal

import pytest
from hypothesis import assume, given, settings

from cloudgpu.decoding import decode_as
from cloudgpu.launch.inventory import Inventory
from cloudgpu.state.catalog_snapshots import History
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.documents import decode_stored
from cloudgpu.state.matrix_records import MatrixRecord
from cloudgpu.state.run_record import RunRecord
from cloudgpu.state.storage_records import StorageRecord
from tests.unit.decoding.test_decoding import Everything
from tests.unit.fuzz.hostile import values
from tests.unit.fuzz.samples_home import CLUSTER, INDEX, MATRIX, NODE, RUN, STORAGE

EVERYTHING = {
    "name": "lab",
    "state": "down",
    "whole": 5,
    "share": 1,
    "loss": 0.5,
    "own": True,
    "at": "2026-11-22T13:00:00+01:00",
    "day": "2026-11-22",
    "disks": [{"gib": 100, "usd": "1.50"}, {"gib": 1}],
    "pair": ["a", 1],
    "tags": {"a": [1, 2]},
    "more": {"x": [None, {}]},
    "rate": "1.5",
    "ranks": {"0": [1]},
}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda one: one.isoformat()))


SAMPLES = (
    (Everything, EVERYTHING),
    (ClusterRecord, _plain(asdict(CLUSTER))),
    (RunRecord, _plain(asdict(RUN))),
    (MatrixRecord, _plain(asdict(MATRIX))),
    (StorageRecord, _plain(asdict(STORAGE))),
    (Inventory, _plain(Inventory("lab", (NODE,)).as_json())),
    (History, INDEX),
)


def _outcome(decode: Any, kind: Any, value: Any) -> str:
    try:
        return repr(decode(kind, value))  # NaN equals nothing, but is shown as the same text
    except ValueError:
        return "refused"


def _has_odd_name(value: Any) -> bool:
    if isinstance(value, dict):
        return any(not name.isascii() or _has_odd_name(part) for name, part in value.items())
    return isinstance(value, list) and any(map(_has_odd_name, value))


@pytest.mark.parametrize(("kind", "sample"), SAMPLES, ids=lambda one: getattr(one, "__name__", ""))
def test_pydantic_adapter_accepts_same_values_as_decode_as(kind, sample):
    @settings(max_examples=200)
    @given(values(sample))
    def agree(value: Any) -> None:
        # The one difference: pydantic refuses an unknown field whose name is not Unicode, which `decode_as` ignores.
        assume(not _has_odd_name(value))
        assert _outcome(decode_stored, kind, value) == _outcome(decode_as, kind, value)

    assert _outcome(decode_stored, kind, sample) == _outcome(decode_as, kind, sample) != "refused"
    agree()


@pytest.mark.parametrize(
    ("kind", "stored", "why"),
    [
        (Everything, {}, "name is missing"),
        (Everything, [], "expected a mapping, got list"),
        (Everything, {"name": 5}, "name: expected text, got 5"),
        (Everything, {"name": "a", "own": 1}, "own: expected true or false, got 1"),
        (Everything, {"name": "a", "whole": True}, "whole: expected a whole number, got True"),
        (
            Everything,
            {"name": "a", "whole": 10**30},
            "whole: expected a whole number, got a number that is too large",
        ),
        (Everything, {"name": "a", "share": float("nan")}, "share: expected a finite number, got nan"),
        (Everything, {"name": "a", "disks": [{"gib": 1}, 5]}, "disks.1: expected a mapping, got 5"),
        (Everything, {"name": "a", "disks": "b"}, "disks: expected a list, got 'b'"),
        (Everything, {"name": "a", "tags": {"b": ["c"]}}, "tags.b.0: expected a whole number, got 'c'"),
        (Everything, {"name": "a", "state": "odd"}, "state: expected one of up, down, got 'odd'"),
        (Everything, {"name": "a", "ranks": {"b": []}}, "ranks.b: expected a whole number, got b"),
        (Literal[1], True, "expected one of 1, got True"),
        (Annotated[str, "not a check"], 1, "expected text, got 1"),
    ],
)
def test_error_message_names_field_and_value(kind, stored, why):
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        decode_stored(kind, stored)


@pytest.mark.parametrize("kind", [complex, int | str])
def test_unsupported_type_raises_type_error(kind):
    with pytest.raises(TypeError, match=r"cannot be read from JSON|must be a single type"):
        decode_stored(kind, 1)


def test_long_name_in_error_message_is_truncated():
    with pytest.raises(ValueError, match="expected") as caught:
        decode_stored(dict[str, int], {"x" * 10_000: "y" * 10_000})
    assert len(str(caught.value)) < 200
