"""Which nodes of a cluster `tunnel`, `exec` and `ssh-config` connect to, and when they refuse."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from cloudgpu.app.ssh import find_cluster_nodes
from cloudgpu.errors import BusyError, UsageError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import Home
from cloudgpu.state.nodes import save_inventory
from cloudgpu.state.record_store import RecordStore
from tests.cluster_records import changed, cluster_record
from tests.manual_clock import ManualClock
from tests.unit.app.conftest import START

NODES = tuple(
    Node(index, f"i-{index}", "192.0.2.1", 22, "ubuntu", ("SHA256:a",), "10.0.0.1", "p3.2xlarge", "us-east-1a",
         "V100", 1, simulated=False)
    for index in range(2)
)  # fmt: skip
RECORD = cluster_record(created_at=START, expires_at=START + timedelta(hours=1), state="up")


@pytest.fixture
def find(tmp_path):
    """Return the nodes of a stored cluster at its start, or some hours later."""
    home = Home(tmp_path / "home").ensure()
    records = RecordStore(home)

    def found(record, hours=0):
        clock = ManualClock(START + timedelta(hours=hours))
        records.save_cluster(record, START)
        save_inventory(home, record.name, Inventory(record.name, NODES))
        return find_cluster_nodes(records, home, SimpleNamespace(clock=clock), record.name)

    return found


def test_running_cluster_has_its_recorded_nodes(find):
    cluster = find(RECORD)
    assert cluster.nodes == NODES
    assert cluster.node(1).instance_id == "i-1"
    with pytest.raises(UsageError, match="cluster lab has no node 2"):
        cluster.node(2)


def test_cluster_that_is_being_deleted_is_busy(find):
    with pytest.raises(BusyError, match="cluster lab is being deleted") as err:
        find(changed(RECORD, state="ending"))
    assert err.value.hint == "cloudgpu down lab"


def test_expired_cluster_has_no_nodes(find):
    with pytest.raises(UsageError, match=r"cluster lab expired at .* and no longer has any nodes") as err:
        find(RECORD, hours=2)
    assert err.value.hint == "cloudgpu down lab"
