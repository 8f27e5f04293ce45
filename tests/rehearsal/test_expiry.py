"""Expiry without any command running: timers armed by `up` end the nodes, and later commands report it."""

import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]

HOUR_S = 3600.0
LIMIT_S = 30.0


def nodes_end(workspace) -> None:
    deadline = time.monotonic() + LIMIT_S
    while client.nodes(workspace.cloud):
        assert time.monotonic() < deadline, client.nodes(workspace.cloud)
        time.sleep(0.05)


def test_nodes_terminate_at_the_recipe_expiry_and_not_before(workspace):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    client.advance(workspace.cloud, HOUR_S - 300)
    assert workspace.run("ssh", "plain", "--", "true").returncode == 0
    client.advance(workspace.cloud, 300)
    nodes_end(workspace)
    (cluster,) = workspace.json("status", "--refresh")["clusters"]
    ids = {node["instance_id"] for node in made["nodes"]}
    assert {(one["id"], one["state"]) for one in cluster["instances"]} == {(one, "terminated") for one in ids}
    workspace.run("train", "plain", "--yes", "--cluster", "plain", code=10)
    assert set(workspace.json("down", "plain")["instances_ended"]) == ids
    assert workspace.left() == {}
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []
