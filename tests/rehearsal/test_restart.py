"""A rehearsal cloud that is stopped and started again works as before."""

import re

import pytest

pytestmark = pytest.mark.rehearsal


def test_nodes_can_write_the_uv_cache_after_a_restart(workspace):
    """Regression: from the second start on an existing cache was mounted read-only, so uv failed and pip was used."""
    workspace.recipe()
    for _ in range(2):
        workspace.run("up", "plain", "--yes")
        workspace.run("exec", "plain", "--", 'mkdir -p "$UV_CACHE_DIR" && touch "$UV_CACHE_DIR/probe"')
        workspace.run("down", "plain")
        workspace.run("rehearsal", "stop")


def test_clusters_of_a_stopped_cloud_are_not_shown_as_running_or_as_interrupted(workspace):
    workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1], market: spot}")
    run = workspace.json("train", "plain", "--yes", "--detach", "--set", "hang=yes")
    cluster = run["cluster"]
    assert workspace.json("status")["clusters"][0]["stopped_at"] is None
    workspace.run("rehearsal", "stop")
    for refresh in ([], ["--refresh"], []):  # a query starts the cloud again, without the nodes
        shown = " ".join(workspace.run("status", *refresh).stdout.split())
        assert f"{cluster} terminated (simulated)" in shown
        assert re.search(r"the rehearsal cloud was stopped at [0-9: -]+ UTC, and its nodes ended with it", shown), shown
        assert "interrupted" not in shown
    attached = workspace.run("attach", run["run_id"], code=5)
    reason = " ".join((attached.stdout + attached.stderr).split())
    assert "terminated, which ended with the rehearsal cloud when it was stopped" in reason
    assert "spot interruption" not in reason
    workspace.run("up", "plain", "--yes", "--no-wait")
    (status,) = workspace.json("status")["clusters"]
    assert (status["state"], status["stopped_at"]) == ("up", None)
    workspace.run("down", "plain", "--yes")
