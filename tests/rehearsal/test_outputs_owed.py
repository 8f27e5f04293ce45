"""Outputs that could not be fetched are owed: the cluster stays, the command fails, `attach` fetches them."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_outputs_that_could_not_be_fetched_keep_the_cluster_until_attach_has_them(bench):
    bench.recipe()
    run = bench.json("train", "plain", "--yes", "--detach", "--set", "wait_for=go")
    outputs = bench.home.run(run["run_id"]).outputs
    outputs.write_text("a file where the folder should be")
    for node in ("0", "1"):
        there = f".cloudgpu/runs/{run['run_id']}/work/go"
        bench.run("ssh", run["cluster"], "--node", node, "--", "touch", there)
    owed = bench.json("attach", run["run_id"], code=5)
    assert owed["state"] == "succeeded"
    assert owed["unfetched"]
    assert owed["left"]
    outputs.unlink()
    fetched = bench.json("attach", run["run_id"])
    assert fetched["unfetched"] == []
    assert (outputs / "outputs/metrics.json").exists()
    assert bench.left() == {}
