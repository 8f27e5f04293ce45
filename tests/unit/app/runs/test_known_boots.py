"""Which nodes have finished their first boot. Only on those is a rejected login final."""

from datetime import timedelta

import pytest

from cloudgpu.state.nodes import mark_booted_nodes, stored_inventory
from tests.cluster_records import changed


@pytest.fixture
def nodes(workspace, make):
    """Return the `booted` values of the nodes of cluster `lab`."""

    def booted():
        record = workspace.records.cluster("lab")
        inventory = mark_booted_nodes(
            workspace.records, stored_inventory(workspace.home, record), workspace.clock.now()
        )
        return {node.booted for node in inventory.nodes}

    workspace.provisioning.create(make.plan(make.candidate()), "lab")
    return booted


def test_nodes_of_new_cluster_are_not_marked_booted(nodes):
    assert nodes() == {False}


def test_nodes_of_old_cluster_are_marked_booted(workspace, nodes):
    workspace.clock.sleep(timedelta(minutes=16).total_seconds())
    assert nodes() == {True}


def test_nodes_that_started_a_run_are_marked_booted(nodes, training):
    training(cluster="lab", detach=True)
    assert nodes() == {True}


def test_nodes_of_cluster_created_by_its_run_are_marked_booted(workspace, gang, training):
    """The run started before its cluster was created."""
    gang.before["start"] = lambda: workspace.clock.sleep(1)
    run = training(detach=True).record
    record = workspace.records.cluster(run.cluster)
    workspace.records.save_cluster(
        changed(record, created_at=record.identity.created_at + timedelta(seconds=1)), workspace.clock.now()
    )
    inventory = mark_booted_nodes(workspace.records, stored_inventory(workspace.home, record), workspace.clock.now())
    assert {node.booted for node in inventory.nodes} == {True}
