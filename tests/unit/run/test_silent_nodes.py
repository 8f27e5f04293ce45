"""An unreachable node is reported to a callback, which may end the wait."""

import json
from datetime import UTC, datetime

import pytest

from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import RunPaths
from cloudgpu.run.agent import Agent
from cloudgpu.run.follow import follow
from cloudgpu.run.log_store import LogStore
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

CUT = ScriptedResult(error=ConnectError("the line was cut"))
DONE = ScriptedResult(stdout=json.dumps({"status": {"state": "succeeded", "first_failure": None}}) + "\n")


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 11, 21, tzinfo=UTC))


@pytest.fixture
def following(tmp_path, clock):
    def go(on_silence, *answers):
        node = Node(0, "i-0", "127.0.0.2", 22, "u", ("SHA256:x",), "127.0.0.2", "g5.xlarge", "z", "A10G", 1, True)
        agent = Agent(FakeHost(node).on(" follow$", *answers), "/a", "/home/u")
        return list(follow([agent], {0: [0]}, {0: "/r"}, LogStore(RunPaths(tmp_path)), clock, on_silence))

    return go


def test_immediately_restored_connection_is_not_reported(following):
    heard = []
    (verdict,) = following(lambda node, err: heard.append(node.index), CUT, CUT, DONE)
    assert verdict.succeeded
    assert heard == []


def test_unreachable_node_is_reported_at_intervals(following, clock):
    heard, began = [], clock.monotonic()

    def hear(node, err):
        heard.append((clock.monotonic() - began, node.instance_id, err.message))

    (verdict,) = following(hear, *[CUT] * 40, DONE)
    assert verdict.succeeded
    assert heard == [(at, "i-0", "the line was cut") for at in (2.0, 17.0, 32.0)]


def test_callback_can_abort_waiting_for_a_terminated_node(following, clock):
    began = clock.monotonic()

    def gone(node, err):
        raise ConnectError(f"{node.instance_id} is terminated")

    with pytest.raises(ConnectError, match="i-0 is terminated"):
        following(gone, *[CUT] * 400)
    assert clock.monotonic() - began < 5


def test_unreachable_node_raises_connect_error_after_3_minutes(following, clock):
    began = clock.monotonic()
    with pytest.raises(ConnectError, match="cut"):
        following(lambda node, err: None, *[CUT] * 400)
    assert 180 < clock.monotonic() - began < 185
