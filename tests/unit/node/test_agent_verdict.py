import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent.gang.spec import Limits
from cloudgpu.node.agent.gang.verdict import HeadCore, WorkerCore, failure_record

LIMITS = Limits()


def report(*, done: bool = False, failed: dict | None = None, cancel: dict | None = None, ended: bool = False) -> dict:
    return {"done": done, "failure": failed, "cancel": cancel, "ended": ended}


def formed(nodes: int = 2, at: float = 0.0) -> HeadCore:
    head = HeadCore(nodes, LIMITS, at)
    for node in range(nodes):
        head.receive(node, report(), at)
    head.tick(at)
    assert head.formed
    return head


def test_gang_forms_when_the_last_node_joins() -> None:
    head = HeadCore(3, LIMITS, 0)
    for node in (0, 2):
        head.receive(node, report(), 1)
        head.tick(1)
    assert not head.formed
    head.receive(1, report(), 2)
    head.tick(2)
    assert head.formed
    assert head.verdict is None


def test_missing_nodes_are_reported_after_the_start_timeout() -> None:
    head = HeadCore(4, LIMITS, 0)
    head.receive(0, report(), 0)
    head.receive(2, report(), 299)
    head.tick(300)
    assert head.verdict is None
    head.tick(300.1)
    head.tick(300.4)
    assert head.verdict["first_failure"] == failure_record(1, "nodes 1, 3 did not join within 300 s")


def test_node_that_disconnects_before_formation_must_rejoin() -> None:
    head = HeadCore(2, LIMITS, 0)
    head.receive(1, report(), 0)
    head.closed(1, 1)
    head.receive(0, report(), 1)
    head.tick(1)
    assert not head.formed


def test_run_succeeds_only_when_every_node_is_done() -> None:
    head = formed(2)
    head.receive(0, report(done=True), 1)
    head.tick(1)
    assert head.verdict is None
    head.receive(1, report(done=True), 1.5)
    head.tick(1.5)
    assert head.verdict["state"] == "succeeded"


def test_earliest_failure_is_reported_even_if_received_last() -> None:
    head = formed(3)
    head.receive(0, report(failed={**failure_record(0, "late", rank=0, exit_code=1), "age_s": 0.01}), 10.0)
    head.tick(10.0)
    assert head.verdict is None
    head.receive(2, report(failed={**failure_record(2, "early", rank=5, exit_code=3), "age_s": 0.15}), 10.1)
    head.tick(10.3)
    assert head.verdict["first_failure"] == failure_record(2, "early", rank=5, exit_code=3)


def test_success_does_not_override_an_earlier_failure() -> None:
    head = formed(2)
    head.receive(1, report(failed={**failure_record(1, "x"), "age_s": 0}), 1)
    head.receive(0, report(done=True), 1)
    head.receive(1, report(done=True), 1)
    head.tick(1)
    assert head.verdict is None
    head.tick(2)
    assert head.verdict["state"] == "failed"


def test_silent_or_disconnected_node_fails_the_run_after_timeout() -> None:
    head = formed(2)
    head.tick(20)
    assert head.verdict is None
    head.tick(20.1)
    head.tick(21)
    assert head.verdict["first_failure"]["reason"] == "lost contact with node 1: silent for 20 s"
    head = formed(2)
    head.closed(1, 1)
    head.closed(1, 5)
    head.tick(6)
    assert head.verdict is None
    head.tick(6.1)
    head.tick(6.5)
    assert head.verdict["first_failure"]["reason"] == "lost contact with node 1: its agent disconnected"


def test_node_that_reconnects_in_time_does_not_fail_run() -> None:
    head = formed(2)
    head.closed(1, 1)
    head.receive(1, report(), 5)
    head.tick(9)
    assert head.verdict is None


def test_head_is_released_only_after_all_workers_ended() -> None:
    head = formed(3)
    head.receive(0, report(cancel={"signal": "SIGUSR1", "grace_s": 90}), 1)
    assert head.verdict == {"state": "cancelled", "first_failure": None, "signal": "SIGUSR1", "grace_s": 90}
    head.receive(1, report(ended=True), 2)
    assert not head.released(2)
    head.closed(2, 3)
    assert head.released(3)


def test_worker_keeps_the_first_verdict() -> None:
    worker = WorkerCore(LIMITS, 0)
    worker.receive({"formed": True, "verdict": None}, 1)
    assert worker.formed
    first = {"state": "failed", "first_failure": failure_record(0, "x"), "signal": "SIGTERM", "grace_s": 1}
    worker.receive({"formed": True, "verdict": first}, 2)
    worker.receive({"formed": True, "verdict": {**first, "state": "succeeded"}}, 3)
    worker.tick(1000)
    assert worker.verdict == first


@pytest.mark.parametrize(("limit", "reason"), [(20.0, "silent for 20 s"), (5.0, "its agent disconnected")])
def test_worker_fails_the_run_after_losing_the_head(limit: float, reason: str) -> None:
    worker = WorkerCore(LIMITS, 0)
    worker.receive({"formed": True, "verdict": None}, 1)
    if limit == 5.0:
        worker.closed(1)
    worker.tick(1 + limit)
    assert worker.verdict is None
    worker.tick(1.1 + limit)
    assert worker.verdict["first_failure"] == failure_record(0, f"lost contact with node 0: {reason}")


def test_worker_start_timeout_is_longer_than_the_heads() -> None:
    worker = WorkerCore(LIMITS, 0)
    worker.closed(0)
    worker.tick(310)
    assert worker.verdict is None
    worker.tick(311)
    assert worker.verdict["first_failure"]["reason"] == "node 0 did not start the run within 300 s"


def test_cancel_does_not_wait_for_an_unreachable_head() -> None:
    worker = WorkerCore(LIMITS, 0)
    worker.cancel({"signal": "SIGTERM", "grace_s": 3}, 1)
    worker.tick(6)
    assert worker.verdict is None
    worker.tick(6.1)
    assert worker.verdict["state"] == "cancelled"


EVENT = st.one_of(
    st.tuples(st.just("hear"), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("fail"), st.integers(0, 2), st.floats(0, 1)),
    st.tuples(st.just("close"), st.integers(1, 2), st.none()),
    st.tuples(st.just("tick"), st.none(), st.floats(0, 30)),
)


@given(st.lists(EVENT, max_size=40))
def test_gang_always_reaches_one_final_verdict(events: list) -> None:
    head, now, verdicts, failed = HeadCore(3, LIMITS, 0.0), 0.0, [], False
    for kind, node, value in events:
        if kind == "hear":
            head.receive(node, report(done=value), now)
        elif kind == "fail":
            head.receive(
                node, report(failed={**failure_record(node, "x", rank=node, exit_code=1), "age_s": value}), now
            )
            failed = failed or head.verdict is None
        elif kind == "close":
            head.closed(node, now)
        else:
            now += value
            head.tick(now)
        verdicts += [head.verdict] if head.verdict else []
    for _ in range(4):
        now += 400
        head.tick(now)
    assert head.verdict is not None
    assert all(verdict == head.verdict for verdict in verdicts)
    assert head.verdict["state"] == "failed" or not failed
    assert (head.verdict["first_failure"] is None) == (head.verdict["state"] == "succeeded")
