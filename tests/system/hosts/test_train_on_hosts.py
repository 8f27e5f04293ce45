"""Complete runs on self-managed hosts: two hosts, a jump host, part of a host's GPUs, and cleanup."""

import json
import re

import pytest

from tests.hosts.lab import Lab
from tests.system.hosts.callers import Caller, leftovers


@pytest.mark.main_path
def test_train_on_two_hosts_succeeds_from_plan_to_cost(lea: Caller):
    plan = lea.json("plan", "tiny", "--on", "ssh")
    assert plan["candidates"][0] | {"rates": 0} == {
        "hosts": ["red", "blue"],
        "pool": "dgx",
        "gpu": "V100",
        "gpus_per_node": 8,
        "gpus_on_host": 8,
        "gpu_memory_gib": "16",
        "hourly_usd": ["12", "12"],
        "rates": 0,
    }
    assert plan["worst_case_usd"] == "12.00"
    came = lea.json("train", "tiny", "--on", "ssh", "--yes")
    assert (came["state"], came["left"], came["simulated"]) == ("succeeded", [], False)
    assert sorted(came["outputs"]["files"]) == [
        "node-1/outputs/rank-2.txt", "node-1/outputs/rank-3.txt", "outputs/rank-0.txt", "outputs/rank-1.txt",
    ]  # fmt: skip
    log = (lea.home / "runs" / came["run_id"] / "logs/rank-0.log").read_text()
    assert log == "rank 0 of 4 on red sees all\nheard [1, 2, 3]\n"
    bill = lea.run("cost").stdout
    # Two hosts at 12 USD for the least that is charged, a minute.
    assert "$0.4000" in bill
    assert "no cluster is recorded on this machine" in lea.run("status").stdout


def test_train_works_behind_jump_host_without_hourly_rate(lea: Caller):
    sets = ("--set", "resources.gpu=A100:4", "--set", "resources.nodes=1")
    shown = lea.run("plan", "tiny", "--on", "ssh", *sets).stdout
    assert re.search(r"1  deep +- +all 4 A100 +unknown", shown)
    assert "0.00 USD until the cluster expires" in shown
    assert "host without a rate: deep" in shown
    lea.run("up", "tiny", "--on", "ssh", "--name", "inner", "--yes", *sets)
    assert lea.run("ssh", "inner", "--", "uname", "-n").stdout == "deep\n"
    came = lea.json("train", "tiny", "--on", "ssh", "--cluster", "inner", "--yes", *sets)
    assert came["state"] == "succeeded"
    assert "running" in lea.run("status", "--refresh").stdout
    assert "inner is deleted" in lea.run("down", "inner").stdout


def test_detached_runs_support_attach_exec_logs_and_cancel(lea: Caller):
    detached = ("--on", "ssh", "--cluster", "pair", "--yes", "--detach")
    lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
    ends = lea.json("train", "tiny", *detached)
    came = lea.json("attach", ends["run_id"])
    assert (ends["state"], came["state"], len(came["outputs"]["files"])) == ("running", "succeeded", 4)
    stays = lea.json("train", "tiny", *detached, "--set", "launch.command=python3 tiny.py waiting")["run_id"]
    (code, said), (bad, _), (listed, names) = lea.run_all(
        "exec pair --json -- uname -n", "exec pair --node 1 -- false", "ssh-config pair --print"
    )
    assert [one["stdout"] for one in json.loads(said)["nodes"]] == ["red\n", "blue\n"]
    assert (code, bad, listed) == (0, 5, 0)
    assert re.findall(r"^Host .*(pair-\d)", names, re.MULTILINE) == ["pair-0", "pair-1"]
    lea.run("cancel", stays)
    assert "cancelled" in lea.run("status", "--all").stdout
    assert "rank 0 of 4 on red sees all" in lea.run("logs", stays, "--rank", "0").stdout
    assert "pair is deleted" in lea.run("down", "pair").stdout


def test_two_users_share_gpus_of_same_host(lea: Caller, ana: Caller, lab_hosts: Lab):
    half = ("--set", "resources.gpu=V100:4", "--set", "resources.nodes=1", "--set", "resources.pool=dgx")
    lea.write_inventory(only=("red", "green"))
    ana.write_inventory(only=("red", "green"))
    first = lea.json("up", "tiny", "--on", "ssh", "--name", "mine", "--yes", *half)
    second = ana.json("up", "tiny", "--on", "ssh", "--name", "mine", "--yes", *half)
    assert [first["nodes"][0]["devices"], second["nodes"][0]["devices"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert first["cost"]["hourly_usd"] == "6"
    came = ana.json("train", "tiny", "--on", "ssh", "--cluster", "mine", "--yes", *half)
    log = (ana.home / "runs" / came["run_id"] / "logs/rank-1.log").read_text()
    assert log == "rank 1 of 2 on red sees 4,5,6,7\n"
    refused = lea.json("plan", "tiny", "--on", "ssh", *half, "--set", "resources.gpu=V100:2", code=7)
    said = [one["message"] for one in refused["findings"] if one["check"] == "host-free"]
    assert [one.partition(", until")[0] for one in said] == [
        "red: leased: GPUs 0-3 by lea (user lab), cluster mine",
        "red: leased: GPUs 4-7 by ana, cluster mine",
    ]
    lea.run("down", "mine")
    # The lease of the other user is unchanged.
    assert ana.json("hosts", "check", "red")["hosts"][0]["facts"]["leases"][0]["owner"] == "ana"
    ana.run("down", "mine")


def test_gpus_used_by_foreign_processes_are_not_leased(lea: Caller, lab_hosts: Lab):
    red = lab_hosts["red"]
    red.set_gpus(apps=[(2, 1, 900)])
    try:
        shown = lea.run("plan", "tiny", "--on", "ssh", code=7).stdout
        assert "error: red: in use: GPU 2: process 1 of root [host-free]" in shown
        part = lea.json(
            "up", "tiny", "--on", "ssh", "--name", "part", "--yes",
            "--set", "resources.gpu=V100:4", "--set", "resources.nodes=1",
        )  # fmt: skip
        assert part["nodes"][0]["devices"] == [0, 1, 3, 4]
        lea.run("down", "part")
    finally:
        red.set_gpus()
    assert leftovers(red) == []
