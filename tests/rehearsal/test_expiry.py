"""The expiry needs nobody: what `up` armed on the nodes ends them, and every command tells the truth afterwards."""

import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]

HOUR_S = 3600.0
LIMIT_S = 30.0


def nodes_end(bench) -> None:
    deadline = time.monotonic() + LIMIT_S
    while client.nodes(bench.cloud):
        assert time.monotonic() < deadline, client.nodes(bench.cloud)
        time.sleep(0.05)


def test_nodes_end_themselves_at_the_expiry_of_the_recipe_and_not_before(bench):
    bench.recipe()
    made = bench.json("up", "plain", "--yes")
    client.advance(bench.cloud, HOUR_S - 300)
    assert bench.run("ssh", "plain", "--", "true").returncode == 0
    client.advance(bench.cloud, 300)
    nodes_end(bench)
    (cluster,) = bench.json("status", "--refresh")["clusters"]
    ids = {node["instance_id"] for node in made["nodes"]}
    assert {(one["id"], one["state"]) for one in cluster["instances"]} == {(one, "terminated") for one in ids}
    bench.run("train", "plain", "--yes", "--cluster", "plain", code=10)
    assert set(bench.json("down", "plain")["instances_ended"]) == ids
    assert bench.left() == {}
    assert [row for row in bench.json("cost")["rows"] if row["open_entries"]] == []
