"""Responses of a hostile node lead only to typed errors, in bounded memory, and never to a false success."""

import json
import math
from datetime import UTC, datetime

import pytest

from cloudgpu.errors import CloudGpuError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import RunPaths
from cloudgpu.recipe.launch_sections import Metric
from cloudgpu.run import metrics
from cloudgpu.run.agent import Agent, AgentReplyError, install_agent
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.follow import follow
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.metrics import Measured, Metrics, Series
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

DONE = {"status": {"state": "succeeded", "first_failure": None}}
DEEP = "[" * 100_000


def status(state="failed", **first):
    return {"status": {"state": state, "first_failure": first or None}}


def agent(index, *lines):
    node = Node(
        index, f"i-{index}", "127.0.0.2", 22, "ubuntu", ("SHA256:x",), "127.0.0.2", "g5.xlarge", "z", "A10G", 1, True
    )
    text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines)
    return Agent(FakeHost(node).on(" follow$", ScriptedResult(stdout=text)), "/a", "/home/ubuntu")


@pytest.fixture
def verdict(tmp_path):
    """Follow to the end and return the verdict; node N runs only rank N."""

    def go(*agents):
        ranks = {one.host.node.index: [one.host.node.index] for one in agents}
        clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC))
        *_, last = follow(agents, ranks, dict.fromkeys(ranks, "/run"), LogStore(RunPaths(tmp_path)), clock)
        return last

    return go


@pytest.mark.parametrize(
    "forged",
    [
        {"status": None},
        {"status": []},
        {"status": "succeeded"},
        {"status": {}},
        {"status": {"state": "running"}},
        {"status": {"state": ""}},
        {"status": {"state": ["succeeded"]}},
        {"status": {"state": "failed", "first_failure": "rank 0"}},
        {"status": {"state": "failed", "first_failure": [1]}},
        status(rank="0"),
        status(rank=1e9),
        status(rank=-1),
        status(rank=True),
        status(rank=10**30),
        status(rank=math.nan),
        status(rank=math.inf),
        status(exit_code={"a": 1}),
        status(exit_code=-(10**9)),
        status(exit_code=256),
        status(exit_code=math.nan),
        status(node_index="../x"),
        {"rank": math.inf, "offset": 0, "bytes": 1, "data": "x"},
        {"rank": 0, "offset": math.inf, "bytes": 1, "data": "x"},
        {"rank": 0, "offset": 0, "bytes": math.nan, "data": "x"},
        {"rank": 0, "offset": 0, "bytes": 10**18, "data": "x"},
        {"rank": 0, "offset": 0, "bytes": -1, "data": "x"},
        {"rank": 0, "offset": 0, "bytes": 0, "data": ""},
        {"rank": 0, "offset": 0, "bytes": 3, "data": "\ud800"},
        {"rank": 0, "offset": -1, "bytes": 1, "data": "x"},
        {"rank": 0, "offset": 7, "bytes": 1, "data": "x"},
        {"rank": 1, "offset": 0, "bytes": 1, "data": "x"},
        {"rank": "../../x", "offset": 0, "bytes": 1, "data": "x"},
        {"rank": 0, "offset": None, "bytes": 1, "data": "x"},
        {"rank": 0},
    ],
    ids=lambda forged: repr(forged)[:60],
)
def test_malformed_message_is_a_typed_error(verdict, forged):
    with pytest.raises(RemoteCommandError):
        verdict(agent(0, forged))


def test_decreasing_log_offsets_are_rejected(verdict):
    pieces = [{"rank": 0, "offset": offset, "bytes": 2, "data": "ab"} for offset in (0, 2, 1)]
    with pytest.raises(RemoteCommandError, match="from byte 1 instead of byte 4"):
        verdict(agent(0, *pieces, DONE))


def test_first_final_status_takes_precedence(verdict):
    assert verdict(agent(0, status(rank=0, exit_code=1), DONE)).state == "failed"
    assert verdict(agent(0, DONE, status(rank=0, exit_code=1))).succeeded


def test_single_node_cannot_declare_success_for_the_gang(verdict):
    last = verdict(agent(0, status(rank=0, exit_code=-9, node_index=0)), agent(1, DONE))
    assert (last.state, last.rank, last.exit_code) == ("failed", 0, -9)


def test_rank_is_not_blamed_if_its_own_node_reports_success(verdict):
    last = verdict(agent(0, DONE), agent(1, status(rank=0, exit_code=1, node_index=0)))
    assert (last.state, last.rank, last.exit_code) == ("failed", None, None)
    assert last.reason == ("node 1 reports that rank 0 failed first, but node 0, which ran it, reports success")


def test_nonexistent_rank_is_not_blamed(verdict):
    last = verdict(agent(0, status(rank=77, exit_code=1)))
    assert (last.state, last.rank) == ("failed", None)
    assert "there is no such rank" in last.reason


def test_failure_reason_is_sanitized_and_truncated():
    told = Verdict.of({"state": "failed", "first_failure": {"reason": "\x1b]0;owned\x07" + "x" * 100_000}})
    assert "\x1b" not in told.reason
    assert len(told.reason) <= 2000


def test_noise_is_skipped_but_endless_noise_is_an_error(verdict):
    assert verdict(agent(0, DEEP, "Welcome!", "1", "null", DONE)).succeeded
    with pytest.raises(RemoteCommandError, match="prints endless output"):
        verdict(agent(0, *["noise " * 100_000] * 40, DONE))


def test_agent_error_text_is_sanitized_and_truncated(verdict):
    with pytest.raises(AgentReplyError) as caught:
        verdict(agent(0, {"error": "\x1b[2Jowned" + "x" * 100_000, "hint": "\x07run this", "code": ["x"]}))
    assert "\x1b" not in caught.value.message
    assert "\x07" not in caught.value.hint
    assert len(caught.value.message) < 5000


def test_agent_install_limits_login_shell_to_60_s():
    node = agent(0).host.node
    host = FakeHost(node)
    asked = []
    host.run = lambda command, **more: asked.append(more["timeout_s"]) or pytest.fail("the test stops here")
    with pytest.raises(pytest.fail.Exception):
        install_agent(host)
    assert asked == [60.0]


def metric(**fields):
    return Metric.model_validate({"pattern": r"v=(?P<value>\S+)", "better": "higher", **fields})


def test_median_keeps_a_bounded_number_of_samples(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_KEPT", 64)
    values = Series(metric(take="median"))
    for number in range(100_001):
        values.add(float(number))
    assert len(values._kept) <= 64
    assert values.printed == 100_001
    assert values.value == pytest.approx(50_000, rel=0.05)


@pytest.mark.parametrize("take", ["last", "mean", "max", "min", "median"])
@pytest.mark.parametrize("over", ["first", "sum", "mean", "max", "min"])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e308", "-1e308", "1e999", "1" * 400, "0x10", "", "1_0"])
def test_no_printed_metric_value_breaks_the_summary(take, over, text):
    read = Metrics({"v": metric(take=take, over_ranks=over, at_least=0.5)})
    for rank in range(3):
        for _ in range(3):
            read.read(f"v={text}", rank)
    (one,) = read.measured()
    if one.value is not None and not math.isfinite(one.value):
        assert one.missed_target
    assert one.share is None


def test_infinite_metric_value_misses_its_target():
    assert Measured("v", math.inf, metric(at_least=0.5)).missed_target
    assert Measured("v", 0.4, metric(at_least=0.5)).missed_target
    assert not Measured("v", 0.5, metric(at_least=0.5)).missed_target


def test_any_log_chunk_is_valid_or_a_typed_error():
    odd = [None, True, -1, 1.5, "1", "x", [], {}, 10**30, math.nan, math.inf, "\ud800", "\udc80"]
    counted = 0
    for rank in odd:
        for offset in odd:
            for size in odd:
                for data in odd:
                    counted += 1
                    try:
                        Chunk.of({"rank": rank, "offset": offset, "bytes": size, "data": data})
                    except CloudGpuError:
                        continue
    assert counted == len(odd) ** 4
