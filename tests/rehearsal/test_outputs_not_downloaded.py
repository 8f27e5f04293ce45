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


HARD_TO_COLLECT = """
    import os, pathlib

    rank = os.environ["RANK"]
    out = pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"])
    print("1" * 43)
    print("step 1\\r\\x1b[32maccuracy=0.9\\x1b[0m")
    with (out / "disk.img").open("wb") as file:
        file.truncate(7 << 40)
        file.write(b"start")
    pathlib.Path("node-results.txt").write_text(rank)
    if rank == "0":
        pathlib.Path("node-1").mkdir()
        pathlib.Path("node-1/node-results.txt").write_text("of the head")
"""


def test_slow_metric_sparse_file_and_names_of_nodes_delay_and_lose_nothing(workspace):
    metrics = """
        accuracy: {pattern: '^accuracy=(?P<value>[0-9.]+)$', better: higher, at_least: 0.5}
        slow: {pattern: '(?P<value>(?:[0-9]+,?)+)%', better: higher}
    """
    launch = "with: torchrun\nranks_per_node: 1\ncommand: train.py"
    outputs = "[outputs/, node-results.txt, node-1/]"
    workspace.recipe(script=HARD_TO_COLLECT, metrics=metrics, launch=launch, outputs=outputs, params="{}")
    run = workspace.json("train", "plain", "--yes")
    assert (run["state"], run["unfetched"], run["lost"], run["left"]) == ("succeeded", [], [], [])
    assert (run["metrics"]["accuracy"]["value"], run["metrics"]["slow"]["value"]) == (0.9, None)
    assert any("metric slow: its pattern was too slow for 2 lines" in note for note in progress(workspace, run))
    outputs = workspace.home.run(run["run_id"]).outputs
    assert {name: (outputs / name).read_bytes() for name in run["outputs"]["files"] if "disk" not in name} == {
        "node-results.txt": b"0",
        "node-0/node-1/node-results.txt": b"of the head",
        "node-1/node-results.txt": b"1",
    }
    for image in (outputs / "outputs/disk.img", outputs / "node-1/outputs/disk.img"):
        assert image.stat().st_size == 7 << 40
        assert image.stat().st_blocks < 1000
    assert not any("no file matched" in note for note in run["notes"])
    assert workspace.left() == {}


def progress(workspace, run):
    return (workspace.home.run(run["run_id"]).root / "progress.log").read_text().splitlines()
