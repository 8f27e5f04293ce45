"""Storage in recipes: runs share data across clusters, and only disposable storage is deleted with a cluster."""

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


def recipe(workspace, storage, command, nodes=1):
    path = workspace.work / "mounts.yaml"
    text = RECIPE.replace("NODES", str(nodes)).replace("STORAGE", json.dumps(storage))
    path.write_text(text.replace("COMMAND", json.dumps(command)))
    return str(path)


def create(workspace, name, kind, *options):
    return workspace.json("storage", "create", name, "--kind", kind, "--on", "rehearsal", "--yes", *options)


def lines(workspace, run):
    return (workspace.home.run(run["run_id"]).root / "logs" / "rank-0.log").read_text().split()


def test_run_reads_shared_storage_and_disposable_storage_is_deleted(workspace):
    create(workspace, "homes", "efs")
    own = {"name": "own", "to": "/own", "make": {"kind": "lustre", "size": "1200GiB"}, "keep": False}
    path = recipe(workspace, [{"name": "homes", "to": "/team/homes"}, own], WRITE)
    first = workspace.json("train", path, "--on", "rehearsal", "--yes")
    assert first["state"] == "succeeded", first["tail"]
    assert [line.partition(" (")[0] for line in first["left"]] == ["storage homes"]
    second = workspace.json("train", path, "--on", "rehearsal", "--yes")
    assert first["run_id"] in lines(workspace, second)
    (only,) = workspace.json("storage", "list")["storage"]
    assert (only["name"], only["used_by"]) == ("homes", [])
    workspace.run("storage", "delete", "homes", "--delete-data", "--yes")
    assert workspace.left() == {}


def test_plan_excludes_zones_without_the_storage_and_disk_keeps_data(workspace):
    disk = create(workspace, "disk", "ebs", "--size", "8", "--zone", "us-east-1d")
    path = recipe(workspace, [{"name": "disk", "to": "/data/disk"}], "bash -c 'date >{storage.disk}/stamp'")
    plan = workspace.json("plan", path, "--on", "rehearsal")
    assert {one["zone"] for one in plan["candidates"]} == {"us-east-1d"}
    assert [one["check"] for one in plan["findings"] if one["check"].startswith("storage")] == ["storage-zone"]
    run = workspace.json("train", path, "--on", "rehearsal", "--yes", "--keep")
    assert run["state"] == "succeeded", run["tail"]
    (row,) = workspace.json("storage", "list")["storage"]
    assert row["used_by"][0].endswith(f"(cluster {run['cluster']})")
    several = workspace.json("plan", path, "--on", "rehearsal", "--set", "resources.nodes=2", code=None)
    assert any("only one node can mount" in one["message"] for one in several["findings"])
    ended = workspace.json("down", run["cluster"])
    assert [one["name"] for one in ended["storage_kept"]] == ["disk"]
    path = recipe(workspace, [{"name": "disk", "to": "/elsewhere", "mode": "ro"}], "cat {storage.disk}/stamp")
    again = workspace.json("train", path, "--on", "rehearsal", "--yes")
    assert again["state"] == "succeeded", again["tail"]
    assert [row["id"] for row in workspace.left()["volumes"]] == [disk["id"]]


def test_missing_storage_is_reported_before_launch(workspace):
    path = recipe(workspace, [{"name": "nowhere", "to": "/data/x"}], "true")
    refused = workspace.json("up", path, "--on", "rehearsal", "--yes", code=7)
    assert "storage nowhere does not exist" in json.dumps(refused)
    assert workspace.left() == {}
