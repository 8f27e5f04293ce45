"""`status` shows what it cannot determine as unknown, without hiding anything else."""

from cloudgpu.app.cluster_status import list_cluster_statuses, refresh
from cloudgpu.errors import CloudError


def test_cluster_state_is_unknown_while_cloud_is_unreachable(workspace, make, monkeypatch):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.clock.sleep(300)
    (status,) = list_cluster_statuses(workspace.records, workspace.clock.now())

    def silent(region, instance_ids):
        raise CloudError("cannot reach ec2.us-east-1")

    monkeypatch.setattr(workspace.cloud, "instance_states", silent)
    seen = refresh(status, workspace.cloud, workspace.records, workspace.clock.now())
    assert (seen.state, seen.problem, seen.age_s) == ("unknown", "cannot reach ec2.us-east-1", 300)
    assert seen.as_json()["problem"]


def test_cluster_of_another_account_has_unknown_state(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.account_id = "999900001111"
    (status,) = list_cluster_statuses(workspace.records, workspace.clock.now())
    assert refresh(status, workspace.cloud, workspace.records, workspace.clock.now()).state == "unknown"


def test_terminated_node_degrades_its_cluster(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    (status,) = list_cluster_statuses(workspace.records, workspace.clock.now())
    assert refresh(status, workspace.cloud, workspace.records, workspace.clock.now()).state == "degraded"


def test_cluster_without_nodes_is_terminated_and_costs_nothing(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    (status,) = list_cluster_statuses(workspace.records, workspace.clock.now())
    seen = refresh(status, workspace.cloud, workspace.records, workspace.clock.now())
    assert (seen.state, seen.hourly_usd) == ("terminated", 0)
    assert {row["state"] for row in seen.as_json()["instances"]} == {"terminated"}


def test_damaged_cluster_record_is_listed_with_the_others(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.provisioning.create(make.plan(make.candidate()), "other")
    workspace.home.cluster("demo").record.write_text("null")
    states = {
        status.record.name: status.state for status in list_cluster_statuses(workspace.records, workspace.clock.now())
    }
    assert states == {"demo": "damaged", "other": "up"}
    damaged = next(
        status
        for status in list_cluster_statuses(workspace.records, workspace.clock.now())
        if status.state == "damaged"
    )
    assert refresh(damaged, workspace.cloud, workspace.records, workspace.clock.now()) == damaged
    document = damaged.as_json()
    assert document["instances"] == []
    # Values that a damaged record does not provide are null.
    assert {document[name] for name in ("simulated", "nodes", "hourly_usd", "spent_usd", "expires_at")} == {None}
    (other,) = [
        status for status in list_cluster_statuses(workspace.records, workspace.clock.now()) if status.state == "up"
    ]
    assert set(document) == set(other.as_json())


def test_damaged_run_record_does_not_hide_other_runs(workspace, training):
    kept = training().record
    folder = workspace.home.runs / "broken-run"
    folder.mkdir()
    (folder / "run.json").write_text('{"run_id": []')
    assert [run.run_id for run in workspace.records.runs()] == [kept.run_id]


def test_record_with_unknown_field_of_newer_version_is_read(workspace, make):
    import json

    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    path = workspace.home.cluster("demo").record
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    assert workspace.records.cluster("demo").state == "up"
