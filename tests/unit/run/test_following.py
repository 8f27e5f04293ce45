"""Following a gang whose agents die, send false data, stop responding or send too much."""

import json
import threading
import time
import tracemalloc
from datetime import UTC, datetime

import pytest

from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError, SshSetupError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import RunPaths
from cloudgpu.run import follow as follow_module
from cloudgpu.run.agent import Agent, SilentAgentError
from cloudgpu.run.agent_messages import Chunk, SpotNotice, Verdict, combine_verdicts
from cloudgpu.run.follow import follow
from cloudgpu.run.log_store import LogStore
from cloudgpu.ssh.base import TimeLimitError
from cloudgpu.ssh.handshake import AuthRefusedError
from tests.fake_host import FakeHost, ScriptedResult
from tests.manual_clock import ManualClock

DONE = {"status": {"state": "succeeded", "first_failure": None}}
LOST = ConnectError("the line was cut")


def failed(node=1, rank=None):
    first = {"rank": rank, "node_index": node, "reason": "because"}
    return {"status": {"state": "failed", "first_failure": first}}


def piece(text, offset=0, rank=0):
    return {"rank": rank, "offset": offset, "bytes": len(text.encode()), "data": text}


def lines(*answers, **more):
    return ScriptedResult(stdout="".join(json.dumps(one) + "\n" for one in answers), **more)


def agent(index, *answers):
    node = Node(
        index, f"i-{index}", "127.0.0.2", 22, "ubuntu", ("SHA256:x",), "127.0.0.2", "g5.xlarge", "z", "A10G", 1, True
    )
    return Agent(FakeHost(node).on(" follow$", *answers), "/a", "/home/ubuntu")


@pytest.fixture
def clock():
    return ManualClock(datetime(2026, 11, 21, tzinfo=UTC))


@pytest.fixture
def gather(tmp_path, clock):
    """Follow to the end and return all text and the verdict."""

    def go(*agents):
        ranks = {one.host.node.index: [one.host.node.index] for one in agents}
        store = LogStore(RunPaths(tmp_path))
        *chunks, verdict = follow(agents, ranks, dict.fromkeys(ranks, "/run"), store, clock)
        return "".join(chunk.text for chunk in chunks), verdict

    return go


def test_interrupted_log_resumes_at_the_last_offset(gather, tmp_path):
    one = agent(0, lines(piece("a\n"), error=LOST), lines(piece("b\n", 2), DONE))
    text, verdict = gather(one)
    assert (text, verdict.succeeded) == ("a\nb\n", True)
    assert [json.loads(sent.stdin)["offsets"] for sent in one.host.sent] == [{"0": 0}, {"0": 2}]
    assert (tmp_path / "logs" / "rank-0.log").read_text() == "a\nb\n"


def test_quiet_run_survives_a_brief_disconnect(gather, clock, monkeypatch):
    """An hour without output is not a lost connection: the agent sent heartbeats all the time."""
    one = agent(0, ScriptedResult(), lines(DONE))
    stream = one.host.stream
    calls = []

    class Quiet:
        exit_code = None
        stderr = ""

        def lines(self, timeout_s=None):
            for _ in range(240):
                clock.sleep(15)
                yield '{"alive":true}'
            raise LOST

        def renew(self):
            pass

        def close(self):
            pass

    def first_quiet(command, *, stdin=b""):
        calls.append(1)
        return Quiet() if len(calls) == 1 else stream(command, stdin=stdin)

    monkeypatch.setattr(one.host, "stream", first_quiet)
    one.host.on(" follow$", lines(DONE))
    assert gather(one)[1].succeeded


@pytest.mark.timeout(30)
def test_hung_agent_on_reachable_host_is_reported_and_abandoned(tmp_path, clock, monkeypatch):
    """Each attempt lasts for the whole time limit; an open connection alone does not count as contact."""
    one, heard = agent(0), []

    class Hung:
        exit_code = None
        stderr = ""

        def lines(self, timeout_s=None):
            clock.sleep(timeout_s)
            raise TimeLimitError("too late")
            yield

        def close(self):
            pass

    monkeypatch.setattr(one.host, "stream", lambda *_, **__: Hung())
    store = LogStore(RunPaths(tmp_path))
    with pytest.raises(SilentAgentError, match=r"did not respond to `follow` within 120 s"):
        list(follow([one], {0: [0]}, {0: "/run"}, store, clock, lambda node, err: heard.append(err.message)))
    assert clock.monotonic() < 300
    assert "did not respond to `follow`" in heard[0]


@pytest.mark.timeout(30)
def test_unreachable_node_is_followed_again_while_other_nodes_run(gather, clock, monkeypatch):
    monkeypatch.setattr(follow_module, "_RETRY_LOST_S", 0.0)
    lost, found = threading.Event(), threading.Event()
    put = follow_module.Feed.put

    def noticed(self, item):
        put(self, item)
        if isinstance(item, follow_module.Contact):
            (found if item.trouble is None else lost).set()

    class Steady:
        exit_code = None
        stderr = ""

        def lines(self, timeout_s=None):
            assert found.wait(20)
            yield json.dumps(DONE)

        def renew(self):
            pass

        def close(self):
            pass

    monkeypatch.setattr(follow_module.Feed, "put", noticed)
    one, other = agent(0), agent(1, lines(error=LOST))
    stream = other.host.stream
    monkeypatch.setattr(one.host, "stream", lambda *_, **__: Steady())

    def reached_once_lost(command, *, stdin=b""):
        if lost.is_set():
            other.host.on(" follow$", lines(piece("late\n", rank=1), DONE))
        return stream(command, stdin=stdin)

    monkeypatch.setattr(other.host, "stream", reached_once_lost)
    text, verdict = gather(one, other)
    assert (text, verdict.succeeded) == ("late\n", True)
    assert clock.monotonic() > 180


def test_node_unreachable_for_3_minutes_raises_connect_error(gather, clock):
    with pytest.raises(ConnectError, match="cut"):
        gather(agent(0, lines(error=LOST)))
    assert 180 < clock.monotonic() < 200


def test_agent_that_exits_without_output_is_not_retried_forever(gather, clock):
    with pytest.raises(RemoteCommandError, match="exited without output") as caught:
        gather(agent(0, ScriptedResult(exit_code=127, stderr="sh: python3: not found")))
    assert caught.value.tail == ("sh: python3: not found",)
    assert clock.monotonic() < 200


def test_unreachable_node_does_not_override_verdict_of_other_nodes(gather):
    assert gather(agent(0, lines(failed(1))), agent(1, lines(error=LOST)))[1].reason == "because"


def test_success_requires_logs_of_every_node(gather):
    with pytest.raises(ConnectError):
        gather(agent(0, lines(DONE)), agent(1, lines(error=LOST)))


@pytest.mark.parametrize("error", [HostKeyError("another key"), SshSetupError("cannot read the SSH key")])
def test_faults_that_cannot_heal_fail_immediately(gather, clock, error):
    with pytest.raises(type(error)):
        gather(agent(0, lines(DONE)), agent(1, lines(error=error)))
    assert clock.monotonic() < 5


@pytest.mark.parametrize(
    "nonsense",
    [
        {"rank": 0, "offset": 0, "bytes": 99, "data": "x"},
        {"rank": 0, "offset": 0, "data": "x"},
        {"rank": 0, "offset": "?", "bytes": 1, "data": "x"},
        {"rank": 0, "offset": 7, "bytes": 1, "data": "x"},
        {"rank": 5, "offset": 0, "bytes": 1, "data": "x"},
        {"status": {}},
        {"status": "done"},
        {"error": "there is no run", "code": "no-run"},
    ],
)
def test_malformed_agent_message_is_an_error_and_does_not_hang(gather, nonsense):
    with pytest.raises(RemoteCommandError):
        gather(agent(0, lines(nonsense)))


def test_exception_in_reader_thread_is_raised_to_the_caller(gather, monkeypatch):
    one = agent(0)

    def bug(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(one.host, "stream", bug)
    with pytest.raises(ZeroDivisionError):
        gather(one)


def test_reader_applies_backpressure_and_stops_when_abandoned(tmp_path, clock):
    flood = Flood()
    one = agent(0)
    one.host.stream = lambda command, stdin=b"": flood
    items = follow([one], {0: [0]}, {0: "/run"}, LogStore(RunPaths(tmp_path)), clock)
    next(items)
    flood.stalled.wait(0.5)
    assert flood.sent < 40
    (reader,) = [thread for thread in threading.enumerate() if thread.name == "follow-0"]
    items.close()
    reader.join(60)
    assert not reader.is_alive()
    assert flood.closed


class Flood:
    """An agent that never stops sending."""

    exit_code = None
    stderr = ""

    def __init__(self):
        self.sent = 0
        self.closed = False
        self.stalled = threading.Event()

    def lines(self, timeout_s=None):
        while self.sent < 100_000:
            yield json.dumps(piece("x" * 100 + "\n", 101 * self.sent))
            self.sent += 1
        self.stalled.set()

    def renew(self):
        pass

    def close(self):
        self.closed = True


def test_concurrent_followers_share_a_log_and_both_see_every_line(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(LogStore, "offset", lambda self, rank: 0)  # both began before either wrote

    def start():
        one = agent(0, lines(piece("a\n"), piece("b\n", 2), DONE))
        return follow([one], {0: [0]}, {0: "/r"}, LogStore(RunPaths(tmp_path)), clock)

    one, two = start(), start()
    seen = [next(one), next(two), next(two), next(one)]
    assert [chunk.text for chunk in seen] == ["a\n", "a\n", "b\n", "b\n"]
    assert (tmp_path / "logs" / "rank-0.log").read_text() == "a\nb\n"
    one.close()
    two.close()


def test_truncated_local_log_is_not_appended_to(tmp_path):
    store = LogStore(RunPaths(tmp_path))
    store.add(Chunk(0, 0, 4, b"abc\n"))
    (tmp_path / "logs" / "rank-0.log").write_text("")
    with pytest.raises(Exception, match="was truncated"):
        store.add(Chunk(0, 4, 2, b"d\n"))


def test_most_informative_verdict_takes_precedence():
    good, lost = Verdict("succeeded"), Verdict("lost", node=1)
    cancelled, named = Verdict("cancelled"), Verdict("failed", 3, 2, 1, "exited with 3")
    assert combine_verdicts([good, good]) == good
    assert combine_verdicts([good, lost]) == lost
    assert combine_verdicts([lost, cancelled]) == cancelled
    assert combine_verdicts([lost, cancelled, named]) == named
    assert combine_verdicts([good, Verdict("perhaps")]).state == "perhaps"


def test_node_that_rejects_the_key_fails_within_seconds(gather, clock):
    refused = ScriptedResult(error=AuthRefusedError("refused the key"))
    with pytest.raises(AuthRefusedError):
        gather(agent(0, refused), agent(1, lines(DONE)))
    assert clock.monotonic() < 5


def test_temporary_key_rejection_is_retried(gather, clock):
    refused = ScriptedResult(error=AuthRefusedError("refused the key"))
    _, verdict = gather(agent(0, refused, refused, lines(DONE)))
    assert verdict.succeeded


def test_key_rejection_does_not_hide_an_earlier_rank_failure(gather):
    refused = ScriptedResult(error=AuthRefusedError("refused the key"))
    _, verdict = gather(agent(0, lines(failed(node=0, rank=0))), agent(1, refused))
    assert verdict.rank == 0


class FastStream:
    """An agent that sends 50 chunks of 1 MB as fast as they are read."""

    exit_code = 0
    stderr = ""
    sent = 0

    def lines(self, timeout_s=None):
        text = "x" * 999_999 + "\n"
        for number in range(50):
            self.sent = number + 1
            yield json.dumps(piece(text, number * len(text)))
        yield json.dumps(DONE)

    def renew(self):
        pass

    def close(self):
        pass


@pytest.fixture
def allocated():
    """Return the largest number of bytes that were allocated at once since the start of the test."""
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    yield lambda: tracemalloc.get_traced_memory()[1] - before
    if not was_tracing:
        tracemalloc.stop()


def test_a_fast_rank_is_read_no_faster_than_its_output_is_handled(tmp_path, clock, allocated):
    """The reader may hold one chunk and the queue four, beside the one in the follower's hands."""
    fast, stream = agent(0), FastStream()
    fast.host.stream = lambda *_args, **_options: stream
    handled, ahead = 0, []
    for item in follow([fast], {0: [0]}, {0: "/run"}, LogStore(RunPaths(tmp_path)), clock):
        if isinstance(item, Chunk):
            handled += 1
            deadline = time.monotonic() + 30
            while stream.sent < min(handled + 5, 50):
                assert time.monotonic() < deadline
            ahead.append(stream.sent - handled)
    assert (handled, max(ahead)) == (50, 5)
    assert allocated() < 16_000_000


@pytest.mark.parametrize("spot", [True, False])
def test_notices_of_spot_interruptions_are_asked_for_and_yielded(tmp_path, spot):
    announced = {"interruption": {"action": "stop", "time": "2026-11-21T12:02:00Z"}}
    odd = {"interruption": {"action": "\x1b[2J", "time": "soon"}}
    agents = [agent(0, lines(announced, odd, DONE))]
    items = list(
        follow(agents, {0: [0]}, {0: "/run"}, LogStore(RunPaths(tmp_path)), ManualClock(datetime.now(UTC)), spot=spot)
    )
    at = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
    assert items[:2] == [SpotNotice(0, "stop", at), SpotNotice(0, "terminate", None)]
    (request,) = [json.loads(sent.stdin) for sent in agents[0].host.sent]
    assert request.get("spot", False) is spot


def test_malformed_notice_of_an_interruption_is_rejected():
    with pytest.raises(RemoteCommandError, match="malformed interruption notice"):
        SpotNotice.of(0, "terminate")
