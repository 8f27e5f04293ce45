"""Unreachable nodes: the instance state in the cloud decides whether to keep retrying."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.app.runs.lost_nodes import SpotNotices, UnreachableNodes, describe_notice, has_checkpoint, what_is_lost
from cloudgpu.errors import AuthError, BadRequestError, CloudError, ConnectError
from cloudgpu.run.agent_messages import SpotNotice
from cloudgpu.state.run_records import RunRecord

TROUBLE = ConnectError("no route to host")


@pytest.fixture
def silence(workspace, make):
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    workspace.heard.clear()
    run = RunRecord("r-1", "demo", "quickstart", "", "ann", "", "rehearsal", workspace.clock.now())
    nodes = workspace.cloud.inventory(record, record.placement.instance_ids, None).nodes
    return UnreachableNodes(workspace.context, run), nodes


def test_unreachable_running_node_is_retried_and_reported(workspace, silence):
    silent, nodes = silence
    silent(nodes[1], TROUBLE)
    assert [(note.text, note.node) for note in workspace.heard] == [("not responding, retrying: no route to host", 1)]
    assert not silent.all_terminated()


def test_terminated_node_is_reported_and_not_retried(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive[nodes[1].instance_id] = "terminated"
    with pytest.raises(ConnectError, match=rf"node 1 \({nodes[1].instance_id}\) is terminated$"):
        silent(nodes[1], TROUBLE)
    assert not silent.all_terminated()
    workspace.cloud.alive[nodes[0].instance_id] = "shutting-down"
    assert silent.all_terminated()


def test_expiry_is_given_as_reason_for_terminated_node(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive.clear()
    workspace.clock.sleep(7200)
    with pytest.raises(ConnectError, match="is terminated: the cluster expired at"):
        silent(nodes[0], TROUBLE)


def test_expired_credentials_do_not_end_the_run_and_are_reported_once(workspace, silence, monkeypatch):
    silent, nodes = silence

    def expired(region, instance_ids):
        err = AuthError("credentials expired", code="ExpiredToken", hint="aws sso login --profile gpu")
        err.renewable = True
        raise err

    monkeypatch.setattr(workspace.cloud, "instance_states", expired)
    silent(nodes[0], TROUBLE)
    silent(nodes[1], TROUBLE)
    assert not silent.all_terminated()
    assert [note.text for note in workspace.heard if "credentials" in note.text] == [
        "credentials expired; the run continues. To renew the credentials: aws sso login --profile gpu"
    ]


def test_failed_cloud_query_does_not_mark_nodes_terminated(workspace, silence, monkeypatch):
    silent, nodes = silence

    def unreachable(region, instance_ids):
        raise CloudError("no answer")

    monkeypatch.setattr(workspace.cloud, "instance_states", unreachable)
    silent(nodes[0], TROUBLE)
    assert len(workspace.heard) == 1
    assert not silent.all_terminated()


def test_nodes_are_queried_even_without_a_cluster_record(workspace, silence):
    silent, nodes = silence
    workspace.cloud.alive.clear()
    shutil.rmtree(workspace.context.home.cluster("demo").root)
    assert workspace.context.records.cluster("demo") is None
    with pytest.raises(ConnectError, match=r"is terminated$"):
        silent(nodes[0], TROUBLE)
    assert silent.all_terminated()


def test_lost_spot_node_names_interruption_loss_and_next_command(workspace, make):
    workspace.cloud.stored = {"s3://b/r-1": 1}
    record = workspace.provisioning.create(make.plan(make.candidate(market="spot")), "demo").record
    (node, _) = workspace.cloud.inventory(record, record.placement.instance_ids, None).nodes
    workspace.cloud.alive[node.instance_id] = "terminated"
    resolved = {"resources": {"market": "spot"}, "checkpoint": {"path": "c", "to": "s3://b/{run}"}}
    started = workspace.clock.now()
    run = RunRecord(
        "r-1", "demo", "quickstart", "my recipes/r.yaml", "ann", "", "rehearsal", started, resolved=resolved
    )
    with pytest.raises(ConnectError) as caught:
        UnreachableNodes(workspace.context, run)(node, TROUBLE)
    assert caught.value.message == (
        f"spot node 0 ({node.instance_id}) is terminated, most likely a spot interruption: AWS needed the capacity"
    )
    assert caught.value.hint == (
        "its outputs are lost; checkpoints are in s3://b/r-1; resume with: "
        "cloudgpu train 'my recipes/r.yaml' --set checkpoint.resume=s3://b/r-1"
    )


@pytest.mark.parametrize(
    ("resolved", "stored", "text"),
    [
        (
            {"checkpoint": {"to": "s3://b/c"}},
            1,
            "its outputs are lost; checkpoints are in s3://b/c; resume with: cloudgpu train r.yaml",
        ),
        (
            {"checkpoint": {"to": "s3://b/{run}"}, "resources": {"market": "spot"}},
            0,
            "its outputs are lost; no checkpoint was uploaded to s3://b/r-1; start again with: "
            "cloudgpu train r.yaml --set resources.market=on-demand",
        ),
        (
            {"checkpoint": {"to": "s3://b/{run}"}},
            CloudError("no answer"),
            "its outputs are lost; it is unknown whether s3://b/r-1 contains checkpoints; if so, resume with: "
            "cloudgpu train r.yaml --set checkpoint.resume=s3://b/r-1",
        ),
        (
            {"checkpoint": {"to": "s3://b/{run}"}},
            BadRequestError("there is no bucket b", code="NoSuchBucket"),
            "its outputs are lost; it is unknown whether s3://b/r-1 contains checkpoints; if so, resume with: "
            "cloudgpu train r.yaml --set checkpoint.resume=s3://b/r-1",
        ),
        (
            {"checkpoint": {"path": "c"}, "resources": {"market": "spot"}},
            1,
            "its outputs and checkpoints are lost; start again with: "
            "cloudgpu train r.yaml --set resources.market=on-demand",
        ),
        ({}, 1, "its outputs are lost; start again with: cloudgpu train r.yaml"),
    ],
)
def test_what_is_lost_depends_on_checkpoints(workspace, resolved, stored, text):
    started = workspace.clock.now()
    run = RunRecord("r-1", "demo", "quickstart", "r.yaml", "ann", "", "rehearsal", started, resolved=resolved)
    url = resolved.get("checkpoint", {}).get("to", "").replace("{run}", "r-1")
    workspace.cloud.stored = {url: stored}
    assert what_is_lost(run, uploaded=has_checkpoint(run, workspace.context.backend)) == text


def test_command_that_continues_a_run_has_the_options_of_the_run(workspace):
    options = ("--on", "aws", "--set", "lr=0.1", "--set", "checkpoint.resume=s3://b/r-0", "--env-file", "my env")
    resolved = {"checkpoint": {"to": "s3://b/{run}"}}
    run = RunRecord(
        "r-1", "demo", "q", "r.yaml", "ann", "", "aws", workspace.clock.now(), resolved=resolved, options=options
    )
    assert what_is_lost(run, uploaded=True).endswith(
        "; resume with: cloudgpu train r.yaml --on aws --set lr=0.1 --env-file 'my env' "
        "--set checkpoint.resume=s3://b/r-1"
    )
    spot = replace(run, resolved={"resources": {"market": "spot"}}, options=("--set", "resources.market=spot"))
    assert what_is_lost(spot, uploaded=False).endswith(": cloudgpu train r.yaml --set resources.market=on-demand")


AT = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("checkpoint", "notice", "text"),
    [
        (
            {"path": "c", "to": "s3://b/{run}"},
            SpotNotice(0, "terminate", AT),
            "AWS terminates this node at 12:02:00 UTC, in 110 s, and the run ends as lost; "
            "node 0 uploads complete checkpoints to s3://b/r-1, and looks for them every second until then",
        ),
        (
            {"path": "c", "to": "s3://b/{run}"},
            SpotNotice(1, "stop", AT - timedelta(hours=1)),
            "AWS stops this node at 11:02:00 UTC, in 0 s, and the run ends as lost; "
            "node 0 uploads complete checkpoints to s3://b/r-1",
        ),
        (
            {"path": "c"},
            SpotNotice(0, "terminate", None),
            "AWS terminates this node within two minutes, and the run ends as lost; "
            "its checkpoints are lost, because the recipe does not set checkpoint.to",
        ),
        (
            None,
            SpotNotice(0, "hibernate", AT),
            "AWS hibernates this node at 12:02:00 UTC, in 110 s, and the run ends as lost; "
            "the recipe has no checkpoints",
        ),
    ],
)
def test_announced_interruption_says_when_the_node_ends_and_what_becomes_of_checkpoints(checkpoint, notice, text):
    resolved = {"checkpoint": checkpoint}
    run = RunRecord("r-1", "demo", "q", "r.yaml", "ann", "", "aws", AT, resolved=resolved)
    now = AT - timedelta(seconds=110)
    assert describe_notice(notice, run, now) == f"spot interruption announced: {text}"


def test_announced_interruption_is_shown_once_for_each_node(workspace):
    run = RunRecord("r-1", "demo", "q", "r.yaml", "ann", "", "aws", AT)
    spot_notices = SpotNotices(workspace.context, run)
    for node in (0, 1, 0, 1, 0):
        spot_notices.add(SpotNotice(node, "terminate", AT))
    assert [note.node for note in workspace.heard] == [0, 1]
    assert not any(note.detail for note in workspace.heard)  # so it stays on the terminal
