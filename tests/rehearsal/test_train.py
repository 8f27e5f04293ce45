"""`train` from plan to bill, on real nodes of the rehearsal cloud."""

import hashlib
import signal
import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]


def test_run_from_plan_to_bill_leaves_nothing(workspace):
    workspace.recipe()
    outcome = workspace.json("train", "plain", "--on", "rehearsal", "--yes")
    assert outcome["state"] == "succeeded"
    assert outcome["simulated"] is True
    assert outcome["metrics"]["accuracy"]["value"] == 0.93
    assert outcome["left"] == []
    assert {stage["name"] for stage in outcome["stages"]} >= {"provision", "gate", "stage", "train", "collect", "down"}
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
    (row,) = workspace.json("cost")["rows"]
    assert row["run"] == outcome["run_id"]
    assert row["simulated"] is True
    assert float(row["usd"]) > 0
    # Logs and outputs stay readable after `down`.
    logs = workspace.run("logs", outcome["run_id"]).stdout
    for rank in range(4):
        assert f"[rank {rank}] rank {rank} of 4 on node {rank // 2}" in logs
    alone = workspace.run("logs", outcome["run_id"], "--rank", "2").stdout.split("\n")[:-1]
    assert alone
    assert all(line.strip().startswith("[rank 2] ") for line in alone)
    assert "its ranks are 0 to 3" in workspace.run("logs", outcome["run_id"], "--rank", "4", code=2).stderr
    assert (workspace.home.run(outcome["run_id"]).outputs / "outputs/metrics.json").exists()


def test_failed_rank_is_reported_and_its_cluster_deleted(workspace):
    workspace.recipe()
    done = workspace.run("train", "plain", "--yes", "--set", "fail_rank=2", code=5)
    assert "rank 2 failed first (exit code 3)" in done.stdout
    assert "the shape of the tensor is wrong" in done.stdout
    assert workspace.left() == {}


@pytest.mark.slow
def test_keep_on_failure_keeps_the_cluster_of_a_failed_run(workspace):
    workspace.recipe()
    outcome = workspace.json("train", "plain", "--yes", "--set", "fail_rank=0", "--keep-on-failure", code=5)
    assert outcome["failed_rank"] == 0
    assert outcome["left"]
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["state"] == "up"
    workspace.run("down", cluster["cluster"])
    assert workspace.left() == {}


def test_train_reuses_and_keeps_a_running_cluster(workspace):
    workspace.recipe()
    first = workspace.json("up", "plain", "--yes")
    assert first["made"]
    again = workspace.json("up", "plain", "--yes")
    assert not again["made"]
    assert [node["instance_id"] for node in again["nodes"]] == [node["instance_id"] for node in first["nodes"]]
    outcome = workspace.json("train", "plain", "--yes")
    assert outcome["cluster"] == "plain"
    assert outcome["kept"] == "the run did not create the cluster"
    assert workspace.json("status")["clusters"][0]["state"] == "up"
    ended = workspace.json("down", "plain")
    assert sorted(ended["instances_ended"]) == sorted(node["instance_id"] for node in first["nodes"])
    assert workspace.left() == {}
    assert "nothing to delete" in workspace.run("down", "plain").stdout


@pytest.mark.slow
def test_train_without_capacity_lists_every_candidate(workspace):
    workspace.recipe()
    client.put_capacity(workspace.cloud, {"*/p3dn.24xlarge/*": 0})
    done = workspace.run("train", "plain", "--yes", code=4)
    tried = [line for line in done.stderr.splitlines() if "InsufficientInstanceCapacity" in line]
    assert [line.split()[0] for line in tried] == ["us-east-1c", "us-east-1d"]
    assert "2 x p3dn.24xlarge not available: no capacity (2 of 2 candidates)" in done.stderr
    nothing = workspace.run("logs")
    assert nothing.stdout == ""
    assert "started no ranks (state: failed): 2 x p3dn.24xlarge not available" in nothing.stderr
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


@pytest.mark.slow
def test_train_moves_to_the_next_zone_without_capacity(workspace):
    workspace.recipe()
    client.put_capacity(workspace.cloud, {"us-east-1c/p3dn.24xlarge/*": 0})
    outcome = workspace.json("train", "plain", "--yes")
    assert outcome["zone"] == "us-east-1d"
    assert workspace.left() == {}


def test_detached_run_is_completed_by_attach(workspace, tmp_path):
    go = "go"
    workspace.recipe()
    detached = workspace.json("train", "plain", "--yes", "--detach", "--set", f"wait_for={go}")
    assert detached["state"] == "running"
    assert detached["kept"] == "detached"
    workspace.run("ssh", detached["cluster"], "--", "touch", f".cloudgpu/runs/{detached['run_id']}/work/{go}")
    workspace.run(
        "ssh", detached["cluster"], "--node", "1", "--", "touch", f".cloudgpu/runs/{detached['run_id']}/work/{go}"
    )
    followed = workspace.run("logs", "-f", detached["run_id"])
    assert followed.stdout.count("[rank 3] epoch=3") == 1
    outcome = workspace.json("attach", detached["run_id"])
    assert outcome["state"] == "succeeded"
    assert workspace.left() == {}
    assert workspace.run("logs", detached["run_id"]).stdout.count("[rank 3] epoch=3") == 1


@pytest.mark.slow
def test_cancel_ends_the_run_but_keeps_the_cluster(workspace):
    workspace.recipe()
    detached = workspace.json("train", "plain", "--yes", "--detach", "--set", "hang=yes")
    assert workspace.json("cancel", detached["run_id"])["state"] == "cancelled"
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["state"] == "up"
    workspace.run("down", cluster["cluster"])
    assert workspace.left() == {}


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"{text!r} never came: {process.stderr.read()}")


@pytest.mark.slow
def test_ctrl_c_keeps_the_run_active_and_prints_the_down_command(workspace):
    workspace.recipe()
    process = workspace.popen("train", "plain", "--yes", "--set", "hang=yes")
    wait_for_line(process, "[rank 3] rank 3 of 4")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "cloudgpu down" in out
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["runs"][0]["state"] == "running"
    workspace.run("down", cluster["cluster"], "--yes")
    assert workspace.left() == {}


def test_ctrl_c_with_on_interrupt_end_deletes_the_cluster(workspace):
    workspace.recipe()
    process = workspace.popen("train", "plain", "--yes", "--set", "hang=yes", "--on-interrupt", "end")
    wait_for_line(process, "[rank 3] rank 3 of 4")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert workspace.left() == {}


def test_secret_reaches_only_the_ranks(workspace):
    secret = "s3cr3t-" + hashlib.sha256(str(time.time()).encode()).hexdigest()
    workspace.recipe(environment="{secrets: [TEST_SECRET]}")
    process = workspace.popen("--debug", "train", "plain", "--yes", "--set", "hang=yes", env={"TEST_SECRET": secret})
    wait_for_line(process, "[rank 3] rank 3 of 4")
    argv = process_arguments()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert secret not in argv + out + err
    holding = [
        path for path in workspace.home.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert holding == []
    logs = workspace.run("logs", "--no-follow").stdout
    assert hashlib.sha256(secret.encode()).hexdigest() in logs
    workspace.run("down", "--yes")
    assert workspace.left() == {}


def process_arguments() -> str:
    from pathlib import Path

    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


@pytest.mark.parametrize("command", ["up", "train"])
def test_plan_above_the_budget_cap_exits_3_and_launches_nothing(workspace, command):
    workspace.recipe(budget="{max_usd: 10, expiry: 1h}")
    told = workspace.json(command, "plain", "--yes", code=3)
    assert told["error"]["type"] == "BudgetError"
    assert "above budget.max_usd 10 USD" in told["error"]["message"]
    assert "--set budget.max_usd=" in told["error"]["hint"]
    assert client.nodes(workspace.cloud) == ()
    assert workspace.json("cost")["rows"] == []
    assert workspace.json("status", "--all")["runs"] == []


def test_missing_secret_is_reported_before_launch(workspace):
    workspace.recipe(environment="{secrets: [TEST_SECRET]}")
    done = workspace.run("train", "plain", "--yes", code=2)
    assert "TEST_SECRET" in done.stderr
    assert workspace.left() == {}


def test_confirmation_without_a_terminal_is_an_error(workspace):
    workspace.recipe()
    done = workspace.run("train", "plain", code=14)
    assert "--yes" in done.stderr
    assert workspace.left() == {}


@pytest.mark.slow
def test_container_run_is_reported_as_not_run(workspace):
    workspace.recipe(environment="{container: {image: 'nvcr.io/nvidia/pytorch:24.12-py3'}}")
    outcome = workspace.json("train", "plain", "--yes")
    assert outcome["state"] == "not-run"
    assert outcome["reason"] == "not run: needs nvcr.io/nvidia/pytorch:24.12-py3"
    assert workspace.left() == {}
