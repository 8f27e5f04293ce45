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

from tests.rehearsal.recipes.carried import ROOT, Trained, cached

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(1200)]


def test_pytorch_resnet50_reduces_loss_on_two_ranks(lab):
    """Train the full network on small images."""
    done = Trained(lab, "pytorch-resnet50")
    assert any(re.match(r"rank 0 of 2 on \S+, CPU, float32, torch 2\.", line) for line in done.head_said), (
        done.head_said
    )
    written = done.written
    assert (written["ranks"], written["batch"]) == (2, 8)
    assert done.figure("images_per_s") == pytest.approx(written["images_per_s"], rel=1e-3)
    assert done.figure("images_per_s") == pytest.approx(2 * done.figure("images_per_s_per_rank"), rel=1e-3)
    # The same made-up batch again and again: a network that learns at all learns it.
    assert done.figure("loss") < written["first_loss"] - 0.02


def test_fastai_resnet50_reaches_its_top5_accuracy(lab):
    """Train with two image sizes; the top-5 accuracy is measured on held-out images."""
    done = Trained(lab, "fastai-resnet50")
    epochs = [dict(pair.split("=") for pair in line.split()) for line in done.head_said if line.startswith("epoch=")]
    assert [int(one["epoch"]) for one in epochs] == list(range(1, len(epochs) + 1))
    assert {one["size"] for one in epochs} == {"32", "48"}
    assert float(epochs[0]["top5"]) < done.figure("top5") <= 100
    assert done.figure("top5") >= 93 > done.figure("loss")
    assert done.figure("hours") > 0
    assert done.written["top5"] == pytest.approx(done.figure("top5"))


def test_fairseq_transformer_reduces_validation_loss(lab):
    """The loss on unseen sentences goes down."""
    done = Trained(lab, "fairseq-transformer")
    told = [json.loads(line.partition("| valid | ")[2]) for line in done.head_said if "| INFO | valid |" in line]
    losses = [float(one["valid_loss"]) for one in told]
    assert len(losses) == 6
    assert done.figure("valid_loss") == losses[-1] < losses[0] - 0.3
    assert done.figure("valid_perplexity") == pytest.approx(2 ** losses[-1], rel=1e-3)
    assert done.figure("words_per_s") > 0


def check_bandwidth(done: Trained) -> None:
    """Check that the figures in the table of all-reduces between two ranks are consistent."""
    rows = done.written["rows"]
    for row in rows:
        assert row["algbw"] == pytest.approx(row["size"] / row["time_us"] / 1e3)
        assert row["busbw"] == pytest.approx(row["algbw"])  # 2(n-1)/n of it, and n is 2
        assert row["wrong"] == 0
    assert done.figure("busbw") == pytest.approx(max(row["busbw"] for row in rows), abs=1e-4)
    mean = sum(row["busbw"] for row in rows) / len(rows)
    assert done.figure("average_busbw") == pytest.approx(mean, rel=1e-3)
    assert done.figure("over_efa") == 0  # nobody pretends to have EFA here
    assert done.written["transport"] == "TCP"
    assert (done.outputs / "busbw.svg").read_text().startswith("<svg ")


def test_nccl_tests_report_consistent_bandwidth(lab):
    done = Trained(lab, "nccl-tests")
    check_bandwidth(done)
    assert "# Out of bounds values : 0 OK" in done.head_said
    assert [row["size"] for row in done.written["rows"]] == [8 * 8**step for step in range(7)]


def test_tcp_efa_matrix_writes_a_row_for_each_network(lab):
    """Run once for each network and write one table."""
    folder = lab.work / "compared"
    folder.mkdir()
    here = replace(lab, work=folder)
    recipe = str(ROOT / "recipes/tcp-efa")
    matrix = ["--matrix", "resources.network=efa,tcp", "--csv", "table.csv"]
    done = here.run("train", recipe, "--on", "rehearsal", "--yes", *matrix, env=cached())
    header, *rows = (folder / "table.csv").read_text().splitlines()
    assert "resources.network" in header
    assert len(rows) == 2, done.stdout
    assert rows[0].startswith("efa,")
    assert rows[1].startswith("tcp,")
    assert "busbw" in done.stdout
    assert lab.left().keys() <= {"buckets"}


def test_hf_finetune_trains_and_saves_the_model(lab):
    """Run the Hugging Face Trainer on synthetic sentences."""
    done = Trained(lab, "hf-finetune")
    losses = [float(found[1]) for line in done.head_said if (found := re.search(r"'loss': '?([0-9.]+)", line))]
    assert losses[-1] < losses[0] / 2
    assert done.figure("accuracy") > 90
    assert done.figure("eval_loss") < losses[0]
    assert done.figure("samples_per_s") > 0
    assert "outputs/model/config.json" in done.told["outputs"]["files"]


def test_jupyter_requires_its_token_and_returns_notebooks(lab):
    """A real JupyterLab behind a tunnel; requests without the token fail, and its notebooks are downloaded."""
    recipe = str(ROOT / "recipes/jupyter")
    alone = replace(lab, start=subprocess.Popen)
    process = alone.popen("train", recipe, "--on", "rehearsal", "--yes", env=cached())
    try:
        opened = next(found for line in process.stdout if (found := re.search(r"(http://\S+)/lab\?token=(\w+)", line)))
        address, token = opened.groups()
        assert "version" in answer(f"{address}/api")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            answer(f"{address}/api/contents")
        names = [one["name"] for one in answer(f"{address}/api/contents", token)["content"]]
        assert names == ["first.ipynb"]
        answer(f"{address}/api/shutdown", token, method="POST")
        rest, _ = process.communicate(timeout=120)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.returncode == 0, rest
    assert token not in rest
    (brought,) = lab.home.root.glob("runs/jupyter-*/outputs/notebooks/first.ipynb")
    assert json.loads(brought.read_text())["nbformat"] == 4
    assert lab.left().keys() <= {"buckets"}


def answer(url: str, token: str = "", method: str = "GET") -> dict[str, Any]:
    headers = {"Authorization": f"token {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=60) as found:
        body = found.read()
    return json.loads(body) if body else {}
