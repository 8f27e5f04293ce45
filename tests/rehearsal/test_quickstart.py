"""The README's quickstart: real training on two nodes, from plan to bill."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloudgpu.rehearsal import client
from tests.documentation import blocks_for, same_output
from tests.pseudo_terminal import PseudoTerminal

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal, pytest.mark.timeout(1200)]


@pytest.fixture
def workspace(cold_workspace):
    """Run every command in a new interpreter, as for a user."""
    return cold_workspace


ROOT = Path(__file__).parents[2]
BUCKET = "cloudgpu-quickstart"
# The first run of a checkout installs torch: some gigabytes.
INSTALLING_S = 1000
EPOCHS = 20
# A processor with other vector units adds in another order, which may turn two of the 360 test images.
TWO_IMAGES = 2 / 360
EPOCH = re.compile(r"^ *\[rank (\d+)\] epoch=(\d+) loss=\S+ accuracy=([0-9.]+) images_per_s=\d+$", re.MULTILINE)
STAGES = ["check data", "provision", "connect", "gate", "stage", "start", "train", "collect", "down"]
INSTALLING = "installing the requirements"


@dataclass(frozen=True)
class Trained:
    """The document and the progress that `train --json` printed."""

    told: dict[str, Any]
    progress: str

    @property
    def run_id(self) -> str:
        return self.told["run_id"]

    @property
    def accuracy(self) -> float:
        return self.told["metrics"]["accuracy"]["value"]


def cached() -> dict[str, str]:
    return {"CLOUDGPU_ENV_CACHE": os.environ.get("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache" / "envs"))}


def train(workspace) -> Trained:
    process = workspace.popen(
        "train", str(ROOT / "recipes/quickstart"), "--on", "rehearsal", "--yes", "--json", env=cached()
    )
    try:
        out, err = process.communicate(timeout=INSTALLING_S)
    finally:
        process.kill()
    assert process.returncode == 0, f"{out}\n{err}"
    return Trained(json.loads(out), err)


def stored(workspace) -> dict[str, tuple[str, Any]]:
    """Return the ETag and modification time of each object in the recipe's bucket."""
    cloud = workspace.cloud
    s3 = boto3.client(
        "s3",
        endpoint_url=cloud.url,
        region_name=cloud.region,
        aws_access_key_id=cloud.access_key_id,
        aws_secret_access_key=cloud.secret_access_key,
    )
    listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    return {one["Key"]: (one["ETag"], one["LastModified"]) for one in listed}


def test_quickstart_trains_and_leaves_nothing(workspace):
    trained = train(workspace)
    check_outcome(trained)
    check_logs(workspace, trained)
    check_outputs(trained)
    check_nothing_is_left(workspace)
    check_bill(workspace, [trained])


@pytest.mark.slow
def test_quickstart_gives_the_same_result_twice_in_the_same_home(workspace):
    first = train(workspace)
    put = stored(workspace)
    second = train(workspace)
    check_outcome(second)
    check_nothing_is_left(workspace)
    assert second.accuracy == first.accuracy, "the same seed, another figure"
    assert INSTALLING not in second.progress
    assert stored(workspace) == put, "the data was sent again"
    check_bill(workspace, [first, second])


@pytest.mark.slow
def test_quickstart_prints_the_lines_of_the_tutorial(workspace):
    """The tutorial shows the most important lines, and ` ...` for the others."""
    (shown,) = blocks_for(__file__, "docs/tutorials/first-run.md")
    process = workspace.popen("train", str(ROOT / "recipes/quickstart"), "--on", "rehearsal", "--yes", env=cached())
    try:
        out, err = process.communicate(timeout=INSTALLING_S)
    finally:
        process.kill()
    assert process.returncode == 0, err
    figures = (
        r"torch \d\S*",
        r"\b(loss|accuracy|images_per_s)[= ][\d.]+",
        r"\$[\d.]+(?= \(simulated)",
        r"(?<=in total: ).*?(?= reached )",
        r"\S*(?=/runs/)",
    )
    assert same_output(shown, out, figures), out


@pytest.mark.slow
def test_quickstart_fits_on_a_terminal(workspace, request):
    """At most 25 lines: the plan, the stages that took a while, and the summary. The log has the rest."""
    terminal = PseudoTerminal(
        [sys.executable, "-m", "cloudgpu", "train", "recipes/quickstart", "--on", "rehearsal", "--yes"],
        environ={**workspace.environment, **cached(), "TERM": "xterm-256color"},
        columns=100,
        rows=40,
        cwd=ROOT,
    )
    request.addfinalizer(terminal.close)
    training = terminal.until(lambda text: "[rank 0] epoch=" in text, INSTALLING_S)
    assert "==> train  " in training
    code, text = terminal.end()
    lines = text.split("\n")
    assert code == 0, text
    assert len(lines) <= 25, text
    assert "epoch=" not in text
    run_id = re.search(r"(quickstart-\w+) succeeded \(simulated\)", text)[1]
    log = (workspace.home.run(run_id).root / "progress.log").read_text()
    assert set(STAGES) <= set(re.findall(r"==> ([a-z ]+?)(?:  |$)", log, re.MULTILINE))
    assert "security group sg-" in log
    assert "host key SHA256:" in log
    check_nothing_is_left(workspace)


def check_outcome(trained: Trained) -> None:
    told = trained.told
    assert (told["state"], told["simulated"], told["left"], told["kept"]) == ("succeeded", True, [], "")
    assert (told["nodes"], told["instance_type"], told["zone"]) == (2, "p3dn.24xlarge", "us-east-1c")
    assert [stage["name"] for stage in told["stages"]] == STAGES
    accuracy = told["metrics"]["accuracy"]
    assert accuracy["value"] >= accuracy["at_least"] == 0.95
    assert accuracy["value"] == pytest.approx(accuracy["reference"]["value"], abs=TWO_IMAGES)
    assert not accuracy["missed"]
    assert told["metrics"]["loss"]["value"] < 0.1
    assert told["metrics"]["images_per_s"]["value"] > 0


def check_logs(workspace, trained: Trained) -> None:
    logs = workspace.run("logs", trained.run_id).stdout
    for rank in (0, 1):
        assert re.search(rf"^ *\[rank {rank}\] rank {rank} of 2 on \S+, CPU, torch ", logs, re.MULTILINE), logs
    epochs = EPOCH.findall(logs)
    assert [int(epoch) for _, epoch, _ in epochs] == list(range(1, EPOCHS + 1))
    assert {rank for rank, _, _ in epochs} == {"0"}
    assert float(epochs[-1][2]) == trained.accuracy
    # What was shown while it ran is what was kept.
    assert [line for line in EPOCH.findall(trained.progress)] == epochs


def check_outputs(trained: Trained) -> None:
    brought = Path(trained.told["outputs"]["directory"])
    assert "outputs/metrics.json" in trained.told["outputs"]["files"]
    metrics = json.loads((brought / "outputs/metrics.json").read_text())
    assert (metrics["epoch"], metrics["ranks"], metrics["seed"]) == (EPOCHS, 2, 0)
    assert metrics["accuracy"] == pytest.approx(trained.accuracy, abs=1e-4)


def check_nothing_is_left(workspace) -> None:
    assert workspace.json("status")["clusters"] == []
    left = workspace.left()
    assert list(left) == ["buckets"], left
    assert [bucket["id"] for bucket in left["buckets"]] == [BUCKET]
    assert client.nodes(workspace.cloud) == ()


def check_bill(workspace, runs: list[Trained]) -> None:
    bill = workspace.json("cost", "--by", "run")
    assert {row["run"] for row in bill["rows"]} == {trained.run_id for trained in runs}
    assert all(row["simulated"] and float(row["usd"]) > 0 and not row["open_entries"] for row in bill["rows"])
    assert float(bill["real_usd"]) == 0
