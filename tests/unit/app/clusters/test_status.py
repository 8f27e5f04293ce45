"""`status`: what cannot be known is shown as unknown, and hides nothing else."""

from cloudgpu.app.clusters.status import list_cluster_statuses, refresh
from cloudgpu.errors import CloudError


def test_unreachable_is_unknown_and_not_confirmed(workspace, make, monkeypatch):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.clock.sleep(300)
    (one,) = list_cluster_statuses(workspace.records, workspace.clock.now())

    def silent(region, instance_ids):
        raise CloudError("cannot reach ec2.us-east-1")

    monkeypatch.setattr(workspace.cloud, "instance_states", silent)
    seen = refresh(one, workspace.cloud, workspace.records, workspace.clock.now())
    assert (seen.state, seen.problem, seen.age_s) == ("unknown", "cannot reach ec2.us-east-1", 300)
    assert seen.as_json()["problem"]


def test_another_account_is_unknown_and_never_gone(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.cloud.account_id = "999900001111"
    (one,) = list_cluster_statuses(workspace.records, workspace.clock.now())
    assert refresh(one, workspace.cloud, workspace.records, workspace.clock.now()).state == "unknown"


def test_a_dead_node_degrades_its_cluster(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    (one,) = list_cluster_statuses(workspace.records, workspace.clock.now())
    assert refresh(one, workspace.cloud, workspace.records, workspace.clock.now()).state == "degraded"


def test_a_damaged_record_is_listed_beside_the_others(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.provisioning.up(make.plan(make.candidate()), "other")
    workspace.home.cluster("demo").record.write_text("null")
    states = {one.record.name: one.state for one in list_cluster_statuses(workspace.records, workspace.clock.now())}
    assert states == {"demo": "damaged", "other": "up"}
    damaged = next(
        one for one in list_cluster_statuses(workspace.records, workspace.clock.now()) if one.state == "damaged"
    )
    assert refresh(damaged, workspace.cloud, workspace.records, workspace.clock.now()) == damaged
    told = damaged.as_json()
    assert told["instances"] == []
    # Nothing is made up for what nobody knows.
    assert {told[name] for name in ("simulated", "nodes", "hourly_usd", "spent_usd", "expires_at")} == {None}
    (other,) = [one for one in list_cluster_statuses(workspace.records, workspace.clock.now()) if one.state == "up"]
    assert set(told) == set(other.as_json())


def test_a_damaged_run_hides_no_other(workspace, training):
    kept = training().record
    folder = workspace.home.runs / "broken-run"
    folder.mkdir()
    (folder / "run.json").write_text('{"run_id": []')
    assert [run.run_id for run in workspace.records.runs()] == [kept.run_id]


def test_a_record_of_a_newer_version_is_read(workspace, make):
    import json

    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    path = workspace.home.cluster("demo").record
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    assert workspace.records.cluster("demo").state == "up"
