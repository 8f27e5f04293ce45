"""Outputs that could not be downloaded: the command fails, the cluster is kept, and `attach` fetches them."""

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def test_failed_download_keeps_the_cluster_until_attach_succeeds(workspace):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--detach", "--set", "wait_for=go")
    outputs = workspace.home.run(run["run_id"]).outputs
    outputs.write_text("a file where the folder should be")
    for node in ("0", "1"):
        there = f".cloudgpu/runs/{run['run_id']}/work/go"
        workspace.run("ssh", run["cluster"], "--node", node, "--", "touch", there)
    owed = workspace.json("attach", run["run_id"], code=5)
    assert owed["state"] == "succeeded"
    assert owed["unfetched"]
    assert owed["left"]
    outputs.unlink()
    fetched = workspace.json("attach", run["run_id"])
    assert fetched["unfetched"] == []
    assert (outputs / "outputs/metrics.json").exists()
    assert workspace.left() == {}


LEAVES_LINKS = """
    import os, pathlib

    out = pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"])
    print("accuracy=0.9")
    if os.environ["RANK"] == "0":
        (out / "ckpt-100").mkdir()
        (out / "ckpt-100/model.pt").write_text("weights")
        (out / "latest").symlink_to(out.resolve() / "ckpt-100")
        (out / "scratch").symlink_to("/etc/hostname")
        (out / "dead").symlink_to("nowhere")
        (out / "loop").symlink_to("loop")
        os.mkfifo(out / "pipe")
"""


def test_symlinks_in_outputs_are_downloaded_or_listed_as_skipped(workspace):
    workspace.recipe(script=LEAVES_LINKS, outputs="[outputs/]")
    run = workspace.json("train", "plain", "--yes")
    assert (run["state"], run["unfetched"], run["lost"], run["left"]) == ("succeeded", [], [], [])
    fetched = workspace.home.run(run["run_id"]).outputs / "outputs"
    assert (fetched / "latest/model.pt").read_text() == "weights"
    assert str((fetched / "latest").readlink()) == "ckpt-100"
    assert {(one["node"], one["path"]) for one in run["outputs"]["skipped"]} == {
        (0, f"outputs/{name}") for name in ("scratch", "dead", "loop", "pipe")
    }
    assert sorted(run["outputs"]["files"]) == ["outputs/ckpt-100/model.pt", "outputs/latest"]
    assert any(
        "outputs/scratch: symlink that points outside the directory, to /etc/hostname" in one for one in run["notes"]
    )
    assert workspace.left() == {}


def test_attach_after_expiry_reports_the_outputs_as_lost(workspace, until):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--detach")
    workspace.run("logs", "-f", run["run_id"])
    client.advance(workspace.cloud, 2 * 3600)
    until(lambda: all(node.state != "running" for node in client.nodes(workspace.cloud)))
    lost = workspace.json("attach", run["run_id"], code=5)
    assert lost["state"] == "succeeded"
    assert "no outputs of run" in lost["lost"][0]
    assert lost["lost"][0] in lost["notes"]
    assert workspace.left() == {}
    again = workspace.json("attach", run["run_id"], code=5)
    assert "were downloaded: its cluster was deleted" in again["error"]["message"]
