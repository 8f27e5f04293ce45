"""A value of the wrong type in a node record affects only that node, not the host or other nodes."""

import json
from dataclasses import fields

import pytest

from cloudgpu.rehearsal.nodes import record
from cloudgpu.rehearsal.nodes.values import NodeSpec

SPEC = NodeSpec(
    instance_id="i-1", instance_type="t", region="r", zone="z", image_id="ami-1", address="", user="ubuntu",
    authorized_keys=(), user_data=b"", gpu="", gpus=0, gpu_memory_mib=0, efa_interfaces=0,
)  # fmt: skip
RECORD = record.SimulatedNodeRecord(
    spec=SPEC, address="127.0.0.2", port=2222, metadata_port=1338, host_key="SHA256:x", isolation="cage",
    timers=(record.Timer("x", 1, ("a",)),),
)  # fmt: skip
WRONG = [None, [], {}, "x", 1.5, True, [[1]], 10**400]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "i-1"
    made.mkdir()
    record.save(made / "record.json", RECORD)
    return made


def test_valid_node_record_is_loaded(folder):
    assert record.load_in(folder) == RECORD


@pytest.mark.parametrize("name", [one.name for one in fields(record.SimulatedNodeRecord)])
@pytest.mark.parametrize("value", WRONG, ids=lambda value: repr(value)[:10])
def test_record_value_of_wrong_type_is_rejected_or_converted(folder, name, value):
    values = json.loads((folder / "record.json").read_text()) | {name: value}
    (folder / "record.json").write_text(json.dumps(values))
    try:
        found = record.load_in(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return
    assert type(getattr(found, name)) is type(getattr(RECORD, name))


def test_record_of_another_node_is_rejected(tmp_path):
    (tmp_path / "i-2").mkdir()
    record.save(tmp_path / "i-2" / "record.json", RECORD)
    with pytest.raises(ValueError, match="another node"):
        record.load_in(tmp_path / "i-2")
