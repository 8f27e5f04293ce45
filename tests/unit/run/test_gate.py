"""The health gate fails closed: a node that lacks the requested hardware is named and never used."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.run.agent import Agent
from cloudgpu.run.node_health import check_nodes
from cloudgpu.run.progress import Note
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

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


def test_healthy_node_passes_and_is_marked_simulated():
    (health,), _ = gate(FINE)
    assert health.gpus == ("Tesla T4 (simulated)",) * 4
    assert health.simulated


def test_health_gate_waits_for_bootstrap_and_reports_progress():
    _, heard = gate({**FINE, "bootstrap": "running", "gpus": []}, {**FINE, "bootstrap": "running"}, FINE)
    assert heard == [Note("bootstrap is running (0 s of at most 10 min)", 1, detail=True)]


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
def test_unhealthy_node_is_named_with_the_reason(facts, why):
    with pytest.raises(RemoteCommandError, match=r"node 1 \(i-1") as caught:
        gate({**FINE, **facts})
    assert why in caught.value.message


P4D = replace(NODE, instance_type="p4d.24xlarge", gpus=8, efa=4)
P4D_FACTS = {**FINE, "gpus": [GPU] * 8, "efa": ["rdmap16s27", "rdmap32s27", "rdmap144s27", "rdmap160s27"]}


def test_node_with_all_planned_efa_devices_passes_the_gate():
    (health,), _ = gate(P4D_FACTS, node=P4D)
    assert health.efa == 4


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([], "it has 0 EFA devices instead of 4 (p4d.24xlarge)"),
        (["rdmap16s27"], "it has 1 EFA device instead of 4 (p4d.24xlarge): rdmap16s27"),
        (P4D_FACTS["efa"] + ["rdmap1s1"], "it has 5 EFA devices instead of 4 (p4d.24xlarge)"),
    ],
)
def test_node_with_other_number_of_efa_devices_is_refused_by_name(devices, why):
    with pytest.raises(RemoteCommandError, match=r"node 1 \(i-1") as caught:
        gate({**P4D_FACTS, "efa": devices}, node=P4D)
    assert why in caught.value.message
    assert "efa" in caught.value.hint


def test_node_whose_health_report_lists_no_efa_devices_is_refused():
    with pytest.raises(RemoteCommandError, match="0 EFA devices instead of 4"):
        gate({name: value for name, value in P4D_FACTS.items() if name != "efa"}, node=P4D)


def test_malformed_list_of_efa_devices_is_named():
    with pytest.raises(RemoteCommandError, match="its health report is malformed"):
        gate({**P4D_FACTS, "efa": 4}, node=P4D)


def test_efa_devices_of_a_node_that_was_planned_without_them_are_ignored():
    (health,), _ = gate({**FINE, "efa": ["rdmap0s6"]})
    assert health.efa == 1


REASON = "CUDA does not initialize (error 802): Fabric Manager 2 does not match driver 1"


def test_node_whose_cuda_does_not_initialize_is_unhealthy():
    with pytest.raises(RemoteCommandError) as caught:
        gate({**FINE, "cuda": {"state": "failed", "error": 802, "reason": REASON}})
    assert caught.value.message == f"node 1 (i-1, us-east-1a) is not ready: {REASON}"
    assert "nvidia-fabricmanager" in caught.value.hint


@pytest.mark.parametrize(
    ("cuda", "state"),
    [
        ({"state": "ok", "error": 0, "reason": ""}, "ok"),
        ({"state": "unknown", "error": None, "reason": "libcuda.so.1 was not found"}, "unknown"),
        (None, "unknown"),
    ],
)
def test_cuda_that_was_not_checked_is_unknown(cuda, state):
    (health,), _ = gate({**FINE, "cuda": cuda})
    assert health.cuda == state


def test_cuda_of_a_node_without_gpus_is_not_considered():
    failed = {"state": "failed", "error": 100, "reason": "no device"}
    (health,), _ = gate({**FINE, "gpus": [], "cuda": failed}, node=replace(NODE, gpus=0))
    assert health.cuda == ""


def test_malformed_cuda_report_is_a_malformed_health_report():
    with pytest.raises(RemoteCommandError, match="malformed"):
        gate({**FINE, "cuda": "broken"})


def step(name, state, seconds=1):
    return {"name": name, "state": state, "seconds": seconds}


PATHS = {
    "baked image": ([step("quiet", "skipped"), step("driver", "skipped")], "", 10),
    "image with a driver": ([step("quiet", "done"), step("driver", "skipped")], "containers", 20),
    "plain Ubuntu": ([step("quiet", "done")], "driver", 30),
    "plain Ubuntu without internet": ([step("quiet", "done")], "driver (waiting for internet access)", 30),
    "plain Ubuntu with EFA": ([step("quiet", "done"), step("driver", "done")], "efa", 45),
    "plain Ubuntu with EFA and storage": ([step("driver", "done"), step("efa", "done")], "mount_sets", 55),
    "plain Ubuntu after a reboot": ([step("driver", "rebooting")], "driver", 35),
}


@pytest.mark.parametrize("path", PATHS)
def test_bootstrap_has_the_time_that_the_image_needs(path):
    steps, current, limit_min = PATHS[path]
    running = {**FINE, "bootstrap": "running", "bootstrap_step": current, "bootstrap_steps": steps}
    polls = limit_min * 60 // 2
    (health,), _ = gate(*[running] * polls, FINE)
    assert health.node == 1
    at = f", which is at step {current}," if current else ""
    with pytest.raises(RemoteCommandError) as caught:
        gate(*[running] * (polls + 2), FINE)
    assert f"its bootstrap{at} has not finished after {limit_min} min" in caught.value.message


def test_bootstrap_that_never_starts_fails_the_gate_after_two_minutes():
    with pytest.raises(RemoteCommandError, match="its bootstrap has not started after 2 min"):
        gate(*[{**FINE, "bootstrap": "none"}] * 1000)


def test_long_step_is_reported_every_half_minute():
    running = {**FINE, "bootstrap": "running", "bootstrap_step": "driver"}
    _, heard = gate(*[running] * 40, FINE)
    assert [note.text for note in heard] == [
        f"bootstrap is running: driver ({elapsed} of at most 30 min)" for elapsed in ("0 s", "30 s", "1 min")
    ]


def test_step_name_from_a_node_is_shown_printable_and_bounded():
    running = {**FINE, "bootstrap": "running", "bootstrap_step": "\x1b[31m" + "x" * 500}
    _, heard = gate(running, FINE)
    assert "\x1b" not in heard[0].text
    assert len(heard[0].text) < 130


def test_malformed_steps_of_a_running_bootstrap_are_an_error_of_the_node():
    with pytest.raises(RemoteCommandError, match="its health report is malformed"):
        gate({**FINE, "bootstrap": "running", "bootstrap_steps": ["driver"]}, FINE)


def cluster(*facts):
    """Return the hosts of a cluster whose other nodes are reached through the head, after the health check."""
    order = []

    class Host(FakeHost):
        def close(self):
            super().close()
            order.append(self.node.index)

    nodes = [replace(NODE, index=index, instance_id=f"i-{index}", jump=0 if index else None) for index in range(3)]
    hosts = [Host(node).on("probe", answer(fact)) for node, fact in zip(nodes, facts, strict=True)]
    heard = []
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    check_nodes([Agent(host, "/a", "/home/ubuntu") for host in hosts], clock, heard.append)
    return order, heard


def test_connections_are_opened_again_if_the_bootstrap_added_a_group():
    order, heard = cluster(FINE, {**FINE, "new_groups": ["docker"]}, {**FINE, "new_groups": ["docker"]})
    assert order == [1, 2, 0]  # the connections through the head first
    assert heard == [Note("logging in again, because the bootstrap added the login user to docker")]


def test_connections_stay_open_if_no_group_was_added():
    assert cluster(FINE, FINE, {**FINE, "new_groups": []}) == ([], [])


def test_cpu_node_passes_without_gpus():
    (health,), _ = gate({**FINE, "gpus": []}, node=replace(NODE, gpus=0))
    assert health.gpus == ()


STEPS = [{"name": "quiet", "state": "skipped", "seconds": 0}, {"name": "driver", "state": "done", "seconds": 141}]


def test_bootstrap_progress_and_duration_are_reported_by_step():
    running = {**FINE, "bootstrap": "running", "bootstrap_step": "driver"}
    _, heard = gate(running, {**FINE, "bootstrap_steps": STEPS})
    assert heard == [
        Note("bootstrap is running: driver (0 s of at most 30 min)", 1, detail=True),
        Note("bootstrap took 141 s: driver 141 s", 1, detail=True),
    ]


def test_bootstrap_duration_of_an_earlier_boot_is_not_reported():
    _, heard = gate({**FINE, "bootstrap_steps": STEPS})
    assert heard == []


def test_rebooting_node_is_waited_for():
    rebooting = {**FINE, "bootstrap": "rebooting", "bootstrap_step": "driver"}
    silent = ConnectError("connection refused")
    _, heard = gate(rebooting, silent, silent, {**rebooting, "bootstrap": "running"}, FINE)
    assert heard == [
        Note("bootstrap is rebooting the node: driver (0 s of at most 30 min)", 1, detail=True),
        Note("bootstrap is running: driver (6 s of at most 30 min)", 1, detail=True),
    ]


def test_node_that_never_returns_from_reboot_fails_the_gate():
    with pytest.raises(ConnectError, match="refused"):
        gate({**FINE, "bootstrap": "rebooting"}, *[ConnectError("connection refused")] * 1000)


def test_node_that_never_responded_is_not_assumed_to_be_rebooting():
    with pytest.raises(ConnectError, match="refused"):
        gate(ConnectError("connection refused"), FINE)
