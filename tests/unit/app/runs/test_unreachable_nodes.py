"""A node that does not answer: the cloud's word decides whether it is awaited."""

import shutil

import pytest

from cloudgpu.app.runs.unreachable_nodes import UnreachableNodes
from cloudgpu.errors import CloudError, ConnectError
from cloudgpu.state.cluster_and_run_records import RunRecord

TROUBLE = ConnectError("no route to host")


@pytest.fixture
def silence(workspace, make):
    record = workspace.provisioning.up(make.plan(make.candidate()), "demo").record
    workspace.heard.clear()
    run = RunRecord("r-1", "demo", "quickstart", "", "ann", "", "rehearsal", workspace.clock.now())
    nodes = workspace.cloud.inventory(record, record.instance_ids, None).nodes
    return UnreachableNodes(workspace.context, run), nodes


def test_a_node_that_lives_is_awaited_and_told(workspace, silence):
    silent, nodes = silence
    silent(nodes[1], TROUBLE)
    assert [(note.text, note.node) for note in workspace.heard] == [("not responding, retrying: no route to host", 1)]
    assert not silent.all_terminated()


def test_a_node_that_is_gone_is_named_and_not_awaited(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive[nodes[1].instance_id] = "terminated"
    with pytest.raises(ConnectError, match=rf"node 1 \({nodes[1].instance_id}\) is terminated$"):
        silent(nodes[1], TROUBLE)
    assert not silent.all_terminated()
    workspace.cloud.alive[nodes[0].instance_id] = "shutting-down"
    assert silent.all_terminated()


def test_the_expiry_is_given_as_the_reason(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive.clear()
    workspace.clock.sleep(7200)
    with pytest.raises(ConnectError, match="is terminated: the cluster expired at"):
        silent(nodes[0], TROUBLE)


def test_a_cloud_that_cannot_be_asked_ends_nothing(workspace, silence, monkeypatch):
    silent, nodes = silence

    def unreachable(region, instance_ids):
        raise CloudError("no answer")

    monkeypatch.setattr(workspace.cloud, "instance_states", unreachable)
    silent(nodes[0], TROUBLE)
    assert len(workspace.heard) == 1
    assert not silent.all_terminated()


def test_a_cluster_whose_record_is_gone_already_is_still_asked_for(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive.clear()
    shutil.rmtree(workspace.context.home.cluster("demo").root)
    assert workspace.context.records.cluster("demo") is None
    with pytest.raises(ConnectError, match=r"is terminated$"):
        silent(nodes[0], TROUBLE)
    assert silent.all_terminated()
