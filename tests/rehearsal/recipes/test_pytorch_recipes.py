"""Run the PyTorch recipes: the shipped script, the same framework, plausible metrics, nothing left."""

import json
import re
import signal
import subprocess
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import pytest

from tests.rehearsal.recipes.recipe_run import ROOT, RecipeRun, cache_environment

pytestmark = [pytest.mark.rehearsal, pytest.mark.environments, pytest.mark.timeout(1200)]


def test_pytorch_resnet50_reduces_loss_on_two_ranks(recipe_workspace):
    """Train the full network on small images."""
    run = RecipeRun(recipe_workspace, "pytorch-resnet50")
    assert any(re.match(r"rank 0 of 2 on \S+, CPU, float32, torch 2\.", line) for line in run.head_lines), (
        run.head_lines
    )
    written = run.metrics_file
    assert (written["ranks"], written["batch"]) == (2, 8)
    assert run.metric("images_per_s") == pytest.approx(written["images_per_s"], rel=1e-3)
    assert run.metric("images_per_s") == pytest.approx(2 * run.metric("images_per_s_per_rank"), rel=1e-3)
    # The synthetic batch is repeated, so the loss must decrease.
    assert run.metric("loss") < written["first_loss"] - 0.02


def test_fastai_resnet50_reaches_its_top5_accuracy(recipe_workspace):
    """Train with two image sizes; the top-5 accuracy is measured on held-out images."""
    run = RecipeRun(recipe_workspace, "fastai-resnet50")
    epochs = [dict(pair.split("=") for pair in line.split()) for line in run.head_lines if line.startswith("epoch=")]
    assert [int(epoch["epoch"]) for epoch in epochs] == list(range(1, len(epochs) + 1))
    assert {epoch["size"] for epoch in epochs} == {"32", "48"}
    assert float(epochs[0]["top5"]) < run.metric("top5") <= 100
    assert run.metric("top5") >= 93 > run.metric("loss")
    assert run.metric("hours") > 0
    assert run.metrics_file["top5"] == pytest.approx(run.metric("top5"))


def test_fairseq_transformer_reduces_validation_loss(recipe_workspace):
    """The loss on unseen sentences goes down."""
    run = RecipeRun(recipe_workspace, "fairseq-transformer")
    validations = [json.loads(line.partition("| valid | ")[2]) for line in run.head_lines if "| INFO | valid |" in line]
    losses = [float(validation["valid_loss"]) for validation in validations]
    assert len(losses) == 6
    assert run.metric("valid_loss") == losses[-1] < losses[0] - 0.3
    assert run.metric("valid_perplexity") == pytest.approx(2 ** losses[-1], rel=1e-3)
    assert run.metric("words_per_s") > 0


def check_bandwidth(run: RecipeRun) -> None:
    """Check that the figures in the table of all-reduces between two ranks are consistent."""
    rows = run.metrics_file["rows"]
    for row in rows:
        assert row["algbw"] == pytest.approx(row["size"] / row["time_us"] / 1e3)
        assert row["busbw"] == pytest.approx(row["algbw"])  # 2(n-1)/n of it, and n is 2
        assert row["wrong"] == 0
    assert run.metric("busbw") == pytest.approx(max(row["busbw"] for row in rows), abs=1e-4)
    mean = sum(row["busbw"] for row in rows) / len(rows)
    assert run.metric("average_busbw") == pytest.approx(mean, rel=1e-3)
    assert run.metric("over_efa") == 0  # there is no EFA on this machine
    assert run.metrics_file["transport"] == "TCP"
    assert (run.outputs / "busbw.svg").read_text().startswith("<svg ")


def test_nccl_tests_report_consistent_bandwidth(recipe_workspace):
    run = RecipeRun(recipe_workspace, "nccl-tests")
    check_bandwidth(run)
    assert "# Out of bounds values : 0 OK" in run.head_lines
    assert [row["size"] for row in run.metrics_file["rows"]] == [8 * 8**step for step in range(7)]


def test_tcp_efa_matrix_writes_a_row_for_each_network(recipe_workspace):
    """Run once for each network and write one table."""
    folder = recipe_workspace.work / "compared"
    folder.mkdir()
    workspace = replace(recipe_workspace, work=folder)
    recipe = str(ROOT / "recipes/tcp-efa")
    matrix = ["--matrix", "resources.network=efa,tcp", "--csv", "table.csv"]
    run = workspace.run("train", recipe, "--on", "rehearsal", "--yes", *matrix, env=cache_environment())
    header, *rows = (folder / "table.csv").read_text().splitlines()
    assert "resources.network" in header
    assert len(rows) == 2, run.stdout
    assert rows[0].startswith("efa,")
    assert rows[1].startswith("tcp,")
    assert "busbw" in run.stdout
    assert recipe_workspace.left().keys() <= {"buckets"}


def test_hf_finetune_trains_and_saves_the_model(recipe_workspace):
    """Run the Hugging Face Trainer on synthetic sentences."""
    run = RecipeRun(recipe_workspace, "hf-finetune")
    losses = [float(found[1]) for line in run.head_lines if (found := re.search(r"'loss': '?([0-9.]+)", line))]
    assert losses[-1] < losses[0] / 2
    assert run.metric("accuracy") > 90
    assert run.metric("eval_loss") < losses[0]
    assert run.metric("samples_per_s") > 0
    assert "outputs/model/config.json" in run.result["outputs"]["files"]


def test_jupyter_requires_its_token_and_returns_notebooks(recipe_workspace):
    """A real JupyterLab behind a tunnel; requests without the token fail, and its notebooks are downloaded."""
    recipe = str(ROOT / "recipes/jupyter")
    unforked = replace(recipe_workspace, start=subprocess.Popen)
    process = unforked.popen("train", recipe, "--on", "rehearsal", "--yes", env=cache_environment())
    try:
        opened = next(found for line in process.stdout if (found := re.search(r"(http://\S+)/lab\?token=(\w+)", line)))
        address, token = opened.groups()
        assert "version" in request_json(f"{address}/api")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            request_json(f"{address}/api/contents")
        names = [entry["name"] for entry in request_json(f"{address}/api/contents", token)["content"]]
        assert names == ["first.ipynb"]
        request_json(f"{address}/api/shutdown", token, method="POST")
        rest, _ = process.communicate(timeout=120)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.returncode == 0, rest
    assert token not in rest
    (notebook,) = recipe_workspace.home.root.glob("runs/jupyter-*/outputs/notebooks/first.ipynb")
    assert json.loads(notebook.read_text())["nbformat"] == 4
    assert recipe_workspace.left().keys() <= {"buckets"}


def request_json(url: str, token: str = "", method: str = "GET") -> dict[str, Any]:
    """Send a request with the token and return the JSON response, or {} if it is empty."""
    headers = {"Authorization": f"token {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=60) as found:
        body = found.read()
    return json.loads(body) if body else {}
