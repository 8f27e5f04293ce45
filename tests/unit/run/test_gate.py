"""The gate fails closed: a node that lacks what was bought is named, and never quietly used."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.clock import ManualClock
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import Agent
from cloudgpu.run.node_health import check_nodes
from cloudgpu.run.progress import Note
from cloudgpu.ssh.fake import FakeHost, ScriptedResult

NODE = Node(
    1, "i-1", "127.0.0.2", 22, "ubuntu", ("SHA256:x",), "127.0.0.2", "g4dn.12xlarge", "us-east-1a", "T4", 4, True
)
GPU = {"name": "Tesla T4 (simulated)", "memory_mib": 15360, "ecc_errors": 0, "driver": "580.1"}
FINE = {"python": "3.11.2", "bootstrap": "done", "disk_free_mib": 50_000, "gpus": [GPU] * 4}


def answer(facts):
    return (
        ScriptedResult(error=facts) if isinstance(facts, Exception) else ScriptedResult(stdout=json.dumps(facts) + "\n")
    )


def gate(*facts, node=NODE):
    host = FakeHost(node).on("probe", *map(answer, facts))
    heard = []
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    return check_nodes([Agent(host, "/a", "/home/ubuntu")], clock, heard.append), heard


def test_a_fit_node_passes_and_is_marked_simulated():
    (health,), _ = gate(FINE)
    assert health.gpus == ("Tesla T4 (simulated)",) * 4
    assert health.simulated


def test_it_waits_for_the_bootstrap_and_says_so():
    _, heard = gate({**FINE, "bootstrap": "running", "gpus": []}, {**FINE, "bootstrap": "running"}, FINE)
    assert heard == [Note("bootstrap is running", 1)]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"gpus": [GPU] * 3}, "it has 3 GPUs instead of 4 (g4dn.12xlarge)"),
        ({"gpus": []}, "it has 0 GPUs"),
        ({"gpus": [GPU] * 3 + [{**GPU, "ecc_errors": 2}]}, "uncorrected ECC errors"),
        ({"disk_free_mib": 3}, "only 3 MiB of disk"),
        ({"bootstrap": "failed", "bootstrap_step": "driver", "bootstrap_error": "no package"}, "failed at step driver"),
    ],
)
def test_an_unfit_node_is_named(facts, why):
    with pytest.raises(RemoteCommandError, match=r"node 1 \(i-1") as caught:
        gate({**FINE, **facts})
    assert why in caught.value.message


def test_a_bootstrap_that_never_ends_is_given_up():
    running = {**FINE, "bootstrap": "running"}
    with pytest.raises(RemoteCommandError, match="not finished after 15 minutes"):
        gate(*[running] * 1000)


def test_a_node_without_gpus_may_have_none():
    (health,), _ = gate({**FINE, "gpus": []}, node=replace(NODE, gpus=0))
    assert health.gpus == ()


STEPS = [{"name": "quiet", "state": "skipped", "seconds": 0}, {"name": "driver", "state": "done", "seconds": 141}]


def test_what_was_waited_for_is_told_by_step():
    running = {**FINE, "bootstrap": "running", "bootstrap_step": "driver"}
    _, heard = gate(running, {**FINE, "bootstrap_steps": STEPS})
    assert heard == [Note("bootstrap is running: driver", 1), Note("bootstrap took 141 s: driver 141 s", 1)]


def test_what_an_earlier_boot_took_is_not_told_again():
    _, heard = gate({**FINE, "bootstrap_steps": STEPS})
    assert heard == []


def test_a_node_that_boots_again_is_waited_for():
    rebooting = {**FINE, "bootstrap": "rebooting", "bootstrap_step": "driver"}
    silent = ConnectError("connection refused")
    _, heard = gate(rebooting, silent, silent, {**rebooting, "bootstrap": "running"}, FINE)
    assert heard == [Note("bootstrap is rebooting the node: driver", 1), Note("bootstrap is running: driver", 1)]


def test_a_node_that_does_not_come_back_is_given_up():
    with pytest.raises(ConnectError, match="refused"):
        gate({**FINE, "bootstrap": "rebooting"}, *[ConnectError("connection refused")] * 1000)


def test_a_node_that_never_answered_is_not_taken_to_boot():
    with pytest.raises(ConnectError, match="refused"):
        gate(ConnectError("connection refused"), FINE)
