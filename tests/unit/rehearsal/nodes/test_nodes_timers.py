"""When node timers fire, and how faults affect them."""

import asyncio
from dataclasses import replace

import pytest

from cloudgpu.rehearsal.faults.node_faults import NodeFault, NodeFaults
from cloudgpu.rehearsal.nodes import processes, record
from cloudgpu.rehearsal.nodes.record import StoredRecord, Timer
from cloudgpu.rehearsal.nodes.servers.metadata import SPOT_RECLAIM_REASON
from cloudgpu.rehearsal.nodes.values import NodeSpec

NOW_S = 1_795_680_000.0
SPEC = NodeSpec(
    instance_id="i-1", instance_type="t", region="r", zone="z", image_id="ami-1", address="", user="ubuntu",
    authorized_keys=(), user_data=b"", gpu="", gpus=0, gpu_memory_mib=0, efa_interfaces=0, spot=True,
)  # fmt: skip
RECORD = record.SimulatedNodeRecord(SPEC, "127.0.0.2", 2222, 1338, "SHA256:x", "plain", state="running")
EXPIRY = Timer("expiry", NOW_S + 60, ("systemctl", "poweroff"))
NOTE = Timer("note", NOW_S + 30, ("touch", "/note"))


class Node:
    """The timers of a node with a clock set by the test; records what the timers did."""

    def __init__(self, path, stored):
        self.skew_s = self.passed_s = 0.0
        self.did = []
        self.stored = StoredRecord(stored, path, lambda: (7, 8))
        self.timers = processes.NodeTimers(
            self.stored,
            now_s=lambda: NOW_S + self.passed_s + self.skew_s,
            cloud_now_s=lambda: NOW_S + self.passed_s,
            run=self.did.append,
            end=lambda action, reason: self.did.append((action, reason)),
        )

    def at(self, passed_s, skew_s=0.0):
        """Arm the timers at a given time and return the actions of those that are due."""
        self.passed_s, self.skew_s = passed_s, skew_s
        self.did.clear()
        asyncio.run(self._armed())
        return self.did

    async def _armed(self):
        self.timers.arm()
        await asyncio.sleep(0.01)
        self.timers.disarm()


@pytest.fixture
def node(tmp_path):
    return lambda **changes: Node(tmp_path / "record.json", replace(RECORD, **changes))


def test_due_timer_runs_once_and_leaves_the_record(node, tmp_path):
    found = node(timers=(EXPIRY, NOTE))
    assert found.at(29) == []
    assert found.at(30) == [("touch", "/note")]
    assert record.load(tmp_path / "record.json").timers == (EXPIRY,)
    assert found.at(31) == []


def test_poweroff_timer_stops_the_node_and_records_its_name(node):
    assert node(timers=(EXPIRY,)).at(60) == [("off", "its timer expiry fired")]
    reboot = Timer("again", NOW_S, ("/sbin/shutdown", "-r", "now"))
    assert node(timers=(reboot,)).at(0) == [("reboot", "its timer again fired")]


def test_clock_skew_affects_timers_but_not_spot_interruption(node):
    found = node(timers=(EXPIRY,), spot_end_epoch_s=NOW_S + 60)
    assert found.at(0, skew_s=59) == []
    assert found.at(0, skew_s=60) == [("off", "its timer expiry fired")]
    assert found.at(60, skew_s=-600) == [("off", SPOT_RECLAIM_REASON)]


def test_disarmed_timers_do_not_fire_and_stay_recorded(node):
    found = node(timers=(EXPIRY,))

    async def rearmed():
        found.passed_s = 60
        found.timers.arm()
        found.timers.disarm()
        await asyncio.sleep(0.01)

    asyncio.run(rearmed())
    assert found.did == []
    assert found.stored.current.timers == (EXPIRY,)


def test_timer_wait_is_at_most_one_hour(node):
    """The loop's clock stops during machine sleep; only a periodic wake-up notices that the time has passed."""
    found = node(timers=(Timer("late", NOW_S + 86400, ("touch", "/late")),))
    waits_s = []

    async def armed():
        loop = asyncio.get_running_loop()
        found.timers.arm()
        waits_s.extend(handle.when() - loop.time() for handle in found.timers._waiting)
        found.passed_s = 86400
        found.timers._fire_due()

    asyncio.run(armed())
    assert len(waits_s) == 1
    assert 3590 < waits_s[0] <= 3600
    assert found.did == [("touch", "/late")]


def test_spot_and_rebalance_notices_are_issued_once():
    faults = NodeFaults((NodeFault("spot-notice", seconds=120), NodeFault("rebalance")))
    changes = faults.new_notices(RECORD, NOW_S)
    assert changes == {"spot_end_epoch_s": NOW_S + 120, "rebalance_epoch_s": NOW_S}
    assert faults.new_notices(replace(RECORD, **changes), NOW_S + 5) == {}
    assert NodeFaults().new_notices(RECORD, NOW_S) == {}


def test_inactive_node_faults_have_neutral_values():
    assert (NodeFaults().clock_skew_s, NodeFaults().home_limit_kib) == (0.0, 0)
    struck = NodeFaults((NodeFault("clock-skew", seconds=-90),)).plus([NodeFault("disk-full", kib=16)])
    assert (struck.clock_skew_s, struck.home_limit_kib) == (-90, 16)
    assert struck.has("disk-full")
    assert not struck.has("sshd-dies")


def test_record_changes_are_saved_with_the_init_process(node, tmp_path):
    found = node()
    found.stored.change(booted=True)
    kept = record.load(tmp_path / "record.json")
    assert kept == found.stored.current
    assert (kept.booted, kept.pid, kept.pid_started) == (True, 7, 8)
    found.stored.power_off("why", unheard=True)
    kept = record.load(tmp_path / "record.json")
    assert (kept.state, kept.reason, kept.unheard, kept.pid) == ("off", "why", True, 0)
