"""Storage of a recipe as whole commands: a run reads what another cluster's run wrote, and only what may go goes."""

import json

import pytest

pytestmark = pytest.mark.rehearsal

WRITE = "bash -c 'cat {storage.homes}/log; echo {run} >>{storage.homes}/log; cp {storage.homes}/log {storage.own}/'"
RECIPE = """\
schema: 1
name: mounts
resources: {instance_type: p3dn.24xlarge, nodes: NODES, regions: [us-east-1]}
workdir: null
storage: STORAGE
launch: {with: torchrun, command: COMMAND, ranks_per_node: 1}
budget: {expiry: 1h}
"""


def recipe(bench, storage, command, nodes=1):
    path = bench.work / "mounts.yaml"
    text = RECIPE.replace("NODES", str(nodes)).replace("STORAGE", json.dumps(storage))
    path.write_text(text.replace("COMMAND", json.dumps(command)))
    return str(path)


def create(bench, name, kind, *options):
    return bench.json("storage", "create", name, "--kind", kind, "--on", "rehearsal", "--yes", *options)


def lines(bench, run):
    return (bench.home.run(run["run_id"]).root / "logs" / "rank-0.log").read_text().split()


def test_a_run_reads_what_another_clusters_run_wrote_and_disposable_storage_goes(bench):
    create(bench, "homes", "efs")
    own = {"name": "own", "to": "/own", "make": {"kind": "lustre", "size": "1200GiB"}, "keep": False}
    path = recipe(bench, [{"name": "homes", "to": "/team/homes"}, own], WRITE)
    first = bench.json("train", path, "--on", "rehearsal", "--yes")
    assert first["state"] == "succeeded", first["tail"]
    assert [line.partition(" (")[0] for line in first["left"]] == ["storage homes"]
    second = bench.json("train", path, "--on", "rehearsal", "--yes")
    assert first["run_id"] in lines(bench, second)
    (only,) = bench.json("storage", "list")["storage"]
    assert (only["name"], only["used_by"]) == ("homes", [])
    bench.run("storage", "delete", "homes", "--delete-data", "--yes")
    assert bench.left() == {}


def test_zones_without_the_storage_are_left_out_and_a_disk_keeps_what_was_written(bench):
    disk = create(bench, "disk", "ebs", "--size", "8", "--zone", "us-east-1d")
    path = recipe(bench, [{"name": "disk", "to": "/data/disk"}], "bash -c 'date >{storage.disk}/stamp'")
    plan = bench.json("plan", path, "--on", "rehearsal")
    assert {one["zone"] for one in plan["candidates"]} == {"us-east-1d"}
    assert [one["check"] for one in plan["findings"] if one["check"].startswith("storage")] == ["storage-zone"]
    run = bench.json("train", path, "--on", "rehearsal", "--yes", "--keep")
    assert run["state"] == "succeeded", run["tail"]
    (row,) = bench.json("storage", "list")["storage"]
    assert row["used_by"][0].endswith(f"(cluster {run['cluster']})")
    several = bench.json("plan", path, "--on", "rehearsal", "--set", "resources.nodes=2", code=None)
    assert any("one node can have" in one["message"] for one in several["findings"])
    ended = bench.json("down", run["cluster"])
    assert [one["name"] for one in ended["storage_kept"]] == ["disk"]
    path = recipe(bench, [{"name": "disk", "to": "/elsewhere", "mode": "ro"}], "cat {storage.disk}/stamp")
    again = bench.json("train", path, "--on", "rehearsal", "--yes")
    assert again["state"] == "succeeded", again["tail"]
    assert [row["id"] for row in bench.left()["volumes"]] == [disk["id"]]


def test_what_is_not_there_is_refused_before_anything_is_bought(bench):
    path = recipe(bench, [{"name": "nowhere", "to": "/data/x"}], "true")
    refused = bench.json("up", path, "--on", "rehearsal", "--yes", code=7)
    assert "there is no storage nowhere" in json.dumps(refused)
    assert bench.left() == {}
