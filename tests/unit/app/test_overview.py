"""`status`: what cannot be known is shown as unknown, and hides nothing else."""

from cloudgpu.app.overview import recorded, refresh
from cloudgpu.errors import CloudError


def test_unreachable_is_unknown_and_not_confirmed(bench, make, monkeypatch):
    bench.provisioning.up(make.plan(make.candidate()), "demo")
    bench.clock.sleep(300)
    (one,) = recorded(bench.records, bench.clock.now())

    def silent(region, instance_ids):
        raise CloudError("cannot reach ec2.us-east-1")

    monkeypatch.setattr(bench.cloud, "nodes_alive", silent)
    seen = refresh(one, bench.cloud, bench.records, bench.clock.now())
    assert (seen.state, seen.problem, seen.age_s) == ("unknown", "cannot reach ec2.us-east-1", 300)
    assert seen.as_json()["problem"]


def test_another_account_is_unknown_and_never_gone(bench, make):
    bench.provisioning.up(make.plan(make.candidate()), "demo")
    bench.cloud.account_id = "999900001111"
    (one,) = recorded(bench.records, bench.clock.now())
    assert refresh(one, bench.cloud, bench.records, bench.clock.now()).state == "unknown"


def test_a_dead_node_degrades_its_cluster(bench, make):
    bench.provisioning.up(make.plan(make.candidate()), "demo")
    bench.cloud.alive["i-us-east-1c-1"] = "terminated"
    (one,) = recorded(bench.records, bench.clock.now())
    assert refresh(one, bench.cloud, bench.records, bench.clock.now()).state == "degraded"


def test_a_damaged_record_is_listed_beside_the_others(bench, make):
    bench.provisioning.up(make.plan(make.candidate()), "demo")
    bench.provisioning.up(make.plan(make.candidate()), "other")
    bench.home.cluster("demo").record.write_text("null")
    states = {one.record.name: one.state for one in recorded(bench.records, bench.clock.now())}
    assert states == {"demo": "damaged", "other": "up"}
    damaged = next(one for one in recorded(bench.records, bench.clock.now()) if one.state == "damaged")
    assert refresh(damaged, bench.cloud, bench.records, bench.clock.now()) == damaged
    told = damaged.as_json()
    assert told["instances"] == []
    # Nothing is made up for what nobody knows.
    assert {told[name] for name in ("simulated", "nodes", "hourly_usd", "spent_usd", "expires_at")} == {None}
    (other,) = [one for one in recorded(bench.records, bench.clock.now()) if one.state == "up"]
    assert set(told) == set(other.as_json())


def test_a_damaged_run_hides_no_other(bench, training):
    kept = training().record
    folder = bench.home.runs / "broken-run"
    folder.mkdir()
    (folder / "run.json").write_text('{"run_id": []')
    assert [run.run_id for run in bench.records.runs()] == [kept.run_id]


def test_a_record_of_a_newer_version_is_read(bench, make):
    import json

    bench.provisioning.up(make.plan(make.candidate()), "demo")
    path = bench.home.cluster("demo").record
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "red"}))
    assert bench.records.cluster("demo").state == "up"
