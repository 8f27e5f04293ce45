"""The gate fails closed: a node that lacks what was bought is named, and never quietly used."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.clock import ManualClock
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.remote.fake import Answer, FakeHost
from cloudgpu.run.agent import Agent
from cloudgpu.run.gate import check
from cloudgpu.run.progress import Note

NODE = Node(
    1, "i-1", "127.0.0.2", 22, "ubuntu", ("SHA256:x",), "127.0.0.2", "g4dn.12xlarge", "us-east-1a", "T4", 4, True
)
GPU = {"name": "Tesla T4 (simulated)", "memory_mib": 15360, "ecc_errors": 0, "driver": "580.1"}
FINE = {"python": "3.11.2", "bootstrap": "done", "disk_free_mib": 50_000, "gpus": [GPU] * 4}


def gate(*facts, node=NODE):
    host = FakeHost(node).on("probe", *[Answer(stdout=json.dumps(one) + "\n") for one in facts])
    heard = []
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    return check([Agent(host, "/a", "/home/ubuntu")], clock, heard.append), heard


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
        ({"gpus": [GPU] * 3}, "shows 3 GPUs, g4dn.12xlarge has 4"),
        ({"gpus": []}, "shows 0 GPUs"),
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
