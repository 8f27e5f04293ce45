"""Which nodes are past their first boot: only there a refused login is an answer at once."""

from dataclasses import replace
from datetime import timedelta

import pytest

from cloudgpu.state.inventories import mark_booted_nodes, stored_inventory


@pytest.fixture
def nodes(workspace, make):
    """Whether the nodes of cluster `lab` count as booted."""

    def booted():
        record = workspace.records.cluster("lab")
        inventory = mark_booted_nodes(
            workspace.records, stored_inventory(workspace.home, record), workspace.clock.now()
        )
        return {node.booted for node in inventory.nodes}

    workspace.provisioning.up(make.plan(make.candidate()), "lab")
    return booted


def test_nodes_of_a_new_cluster_may_still_boot(nodes):
    assert nodes() == {False}


def test_nodes_of_an_old_cluster_do_not(workspace, nodes):
    workspace.clock.sleep(timedelta(minutes=16).total_seconds())
    assert nodes() == {True}


def test_nodes_that_a_run_was_started_on_do_not(nodes, training):
    training(cluster="lab", detach=True)
    assert nodes() == {True}


def test_nodes_of_a_cluster_that_its_own_run_made_do_not(workspace, gang, training):
    """Its run began before it."""
    gang.before["start"] = lambda: workspace.clock.sleep(1)
    run = training(detach=True).record
    record = workspace.records.cluster(run.cluster)
    workspace.records.save_cluster(
        replace(record, created_at=record.created_at + timedelta(seconds=1)), workspace.clock.now()
    )
    inventory = mark_booted_nodes(workspace.records, stored_inventory(workspace.home, record), workspace.clock.now())
    assert {node.booted for node in inventory.nodes} == {True}
