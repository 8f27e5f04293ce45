"""An `up` killed before its launch: its ledger entry is closed at zero cost, and not too early."""

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def killed(workspace):
    """Kill `up` at its first mutating calls, which never reach the cloud."""
    workspace.recipe()
    client.put_faults(workspace.cloud, [{"do": "hold", "mutating": True, "drop": True}])
    process = workspace.popen("up", "plain", "--yes")
    workspace.until_held(process)
    process.kill()
    process.communicate()
    client.put_faults(workspace.cloud, [])
    assert workspace.left() == {}
    assert open_rows(workspace) == 1
    return workspace


def open_rows(workspace):
    return sum(row["open_entries"] for row in workspace.json("cost")["rows"])


def cost(workspace):
    return float(workspace.json("cost")["simulated_usd"])


@pytest.mark.parametrize("command", [("sweep", "--yes"), ("down", "plain")], ids=["sweep", "down"])
def test_down_and_sweep_bill_nothing_if_nothing_was_launched(killed, command):
    killed.run(*command)
    assert open_rows(killed) == 0
    assert cost(killed) == 0
    assert killed.json("status")["clusters"] == []


@pytest.mark.parametrize("lost", ["cluster.json", "us-east-1.journal"])
def test_down_closes_the_ledger_entry_without_record_or_journal(killed, lost):
    (killed.home.cluster("plain").root / lost).unlink()
    killed.run("down", "plain")
    assert open_rows(killed) == 0
    assert cost(killed) == 0


def test_sweep_lists_a_cluster_that_is_only_in_the_ledger(killed):
    (row,) = killed.json("sweep")["clusters"]
    assert (row["cluster"], row["only_in_ledger"], row["goes"], row["regions"]) == ("plain", True, True, ["us-east-1"])
    assert "no resources in the cloud" in killed.run("sweep").stdout


def test_sweep_without_record_keeps_entry_open_while_launch_may_appear(killed):
    killed.home.cluster("plain").record.unlink()
    (row,) = killed.json("sweep", "--yes")["clusters"]
    assert (row["goes"], row["ended"]) == (False, False)
    assert open_rows(killed) == 1
