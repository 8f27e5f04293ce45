"""The life cycle of a gang with real processes: success, failing ranks, cancellation, repeated start."""

import contextlib
import json
import os
import secrets
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.main_path, pytest.mark.system]


def test_gang_succeeds_and_logs_every_rank(make_gang) -> None:
    gang = make_gang()
    gang.start("echo rank $RANK on $NODE", "echo rank $RANK; echo to stderr >&2")
    for node in (0, 1):
        status = gang.wait(node)
        assert status["state"] == "succeeded"
        assert [rank["state"] for rank in status["ranks"]] == ["succeeded"] * 2
        assert [rank["exit_code"] for rank in status["ranks"]] == [0, 0]
        assert status["first_failure"] is None
    assert gang.log(2, 1) == "rank 2 on 1\n"
    assert gang.log(3, 1) == "rank 3\nto stderr\n"
    assert gang.status(1)["ranks"][1]["log_bytes"] == len("rank 3\nto stderr\n")


def test_ranks_start_only_after_every_node_joins(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(0, ["date"]))
    time.sleep(0.5)
    assert gang.status(0)["state"] == "starting"
    assert gang.status(0)["ranks"][0]["state"] == "pending"
    gang.call("start", gang.spec(1, ["date"]))
    assert gang.wait(0)["state"] == "succeeded"


def test_failed_rank_stops_gang_and_is_reported(make_gang) -> None:
    gang = make_gang()
    script = "if [ $RANK = 3 ]; then sleep 0.3; echo broken; exit 3; fi; sleep 300"
    gang.start(script, script)
    began = time.monotonic()
    statuses = [gang.wait(node) for node in (0, 1)]
    assert time.monotonic() - began < 5
    failure = {"rank": 3, "exit_code": 3, "node_index": 1, "reason": "exit code 3"}
    assert [status["first_failure"] for status in statuses] == [failure, failure]
    assert [status["state"] for status in statuses] == ["failed", "failed"]
    assert [rank["state"] for rank in statuses[0]["ranks"]] == ["stopped", "stopped"]
    assert not any(gang.running(pid) for pid in gang.pids())


def test_first_of_two_failures_is_reported(make_gang) -> None:
    gang = make_gang()
    # Rank 0 fails on the head, a moment after rank 1 failed on the worker.
    gang.start("while [ ! -e go ]; do sleep 0.01; done; [ $RANK = 1 ] && exit 9; sleep 0.1; exit 1")
    gang.wait(1, state={"running"})
    (gang.workdir / "go").touch()
    assert gang.wait(0)["first_failure"]["rank"] == 1


def test_killed_rank_is_reported_with_its_signal(make_gang) -> None:
    gang = make_gang()
    gang.start("sleep 300")
    victim = gang.wait(1, state={"running"})["ranks"][0]["pid"]
    gang.kill(victim, signal.SIGKILL)
    failure = gang.wait(0, within_s=5)["first_failure"]
    assert (failure["rank"], failure["exit_code"], failure["node_index"]) == (1, -9, 1)
    assert "SIGKILL" in failure["reason"]


def test_missing_program_fails_with_exit_code_127(make_gang) -> None:
    gang = make_gang(1)
    spec = gang.spec(0, ["true"])
    spec["ranks"][0]["argv"] = ["no-such-program"]
    gang.call("start", spec)
    failure = gang.wait()["first_failure"]
    assert failure["exit_code"] == 127
    assert "no-such-program" in failure["reason"]


@pytest.mark.parametrize("node", [0, 1])
def test_stop_on_any_node_cancels_whole_gang(make_gang, node: int) -> None:
    gang = make_gang()
    gang.start("trap 'echo saved; exit 0' TERM; while true; do sleep 0.05; done")
    for each in (0, 1):
        gang.until(lambda each=each: gang.status(each)["state"], lambda state: state == "running", 5)
    time.sleep(0.3)
    began = time.monotonic()
    assert gang.call("stop", {"run_dir": str(gang.dir(node)), "grace_s": 5})["state"] == "cancelled"
    assert gang.wait(1 - node, within_s=5)["state"] == "cancelled"
    assert time.monotonic() - began < 5
    assert all(gang.log(each, each).endswith("saved\n") for each in (0, 1))
    assert gang.call("stop", {"run_dir": str(gang.dir(node))})["state"] == "cancelled"


def test_checkpoint_signal_reaches_only_rank_process(make_gang) -> None:
    gang = make_gang(1)
    # Its helper would die of SIGUSR1, as a data loader does.
    gang.start(
        "sleep 304 & c=$!; trap 'kill -0 $c && echo helper lives; exit 0' USR1; echo ready; while true; do wait; done"
    )
    gang.until(lambda: gang.log(0, 0), lambda log: "ready" in log, 5)
    stopped = gang.call("stop", {"run_dir": str(gang.dir(0)), "signal": "SIGUSR1", "grace_s": 5})
    assert stopped["state"] == "cancelled"
    assert gang.log(0, 0) == "ready\nhelper lives\n"


def test_stop_before_gang_forms_cancels_node(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(1, ["true"], reconnect_s=0.5))
    assert gang.call("stop", {"run_dir": str(gang.dir(1))})["state"] == "cancelled"


def test_repeated_start_creates_single_run(make_gang) -> None:
    gang = make_gang(1)
    spec = gang.spec(0, ["echo once; sleep 1"])
    starts = [gang.popen("start", spec) for _ in range(5)]
    answers = [json.loads(start.communicate(timeout=30)[0]) for start in starts]
    assert sorted(answer["started"] for answer in answers) == [False] * 4 + [True]
    assert len({answer["agent"]["pid"] for answer in answers}) == 1
    assert gang.wait()["state"] == "succeeded"
    assert gang.call("start", spec)["state"] == "succeeded"
    assert gang.log(0, 0) == "once\n"
    other = gang.call("start", {**spec, "run_id": "another"}, ok=False)
    assert gang.run_id in other["error"]


def test_start_during_run_returns_immediately(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    began = time.monotonic()
    again = gang.call("start", gang.spec(0, ["sleep 300"]))
    assert again["started"] is False
    assert time.monotonic() - began < 10


def test_concurrent_runs_do_not_affect_each_other(make_gang) -> None:
    first, second = make_gang(), make_gang()
    first.start("sleep 1; echo $RANK")
    second.start("exit 7")
    assert second.wait()["state"] == "failed"
    assert [first.wait(node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]


def test_secrets_reach_only_ranks(make_gang) -> None:
    gang = make_gang()
    secret = f"secret-{secrets.token_hex(16)}"
    gang.start("[ ${#PASSWORD} = 39 ] && touch ok-$RANK; sleep 300", secrets={"PASSWORD": secret})
    gang.until(lambda: list(gang.workdir.glob("ok-*")), lambda found: len(found) == 2, 10)
    assert_nowhere(gang.root, secret, gang.token)
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})
    gang.wait(1)
    assert_nowhere(gang.root, secret, gang.token)


def assert_nowhere(root: Path, *words: str) -> None:
    files = [path for path in root.rglob("*") if path.is_file()]
    assert files
    for path in [*files, *Path("/proc").glob("[0-9]*/cmdline")]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            content = path.read_bytes()
            assert not any(word.encode() in content for word in words), path
    assert all(path.stat().st_mode & 0o077 == 0 for path in files if "node-" in str(path) and "work" not in str(path))


def test_ranks_inherit_caller_umask(make_gang) -> None:
    gang = make_gang(1)
    gang.start("umask >mask")
    gang.wait()
    here = os.umask(0o022)
    os.umask(here)
    assert int((gang.workdir / "mask").read_text(), 8) == here


def test_sixteen_nodes_report_same_first_failure(make_gang) -> None:
    gang = make_gang(16)
    gang.start("[ $RANK = 11 ] && exit 5; sleep 300")
    failures = [gang.wait(node)["first_failure"] for node in range(16)]
    assert all(failure == failures[0] for failure in failures)
    assert (failures[0]["rank"], failures[0]["exit_code"]) == (11, 5)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"run_id": "x", "run_dir": "relative", "workdir": "/", "node_index": 0, "ranks": []},
        {"run_id": "x", "run_dir": "/tmp", "workdir": "/", "node_index": 5, "ranks": [{"rank": 0, "argv": ["a"]}]},
    ],
)
def test_invalid_requests_are_rejected_without_traceback(make_gang, spec: dict) -> None:
    gang = make_gang(1)
    answer = gang.call("start", spec, ok=False)
    assert answer["error"].startswith(("start:", "run_dir"))
    assert "grace_s" in gang.call("stop", {"run_dir": "/tmp", "grace_s": "x"}, ok=False)["error"]
    missing = gang.call("status", {"run_dir": str(gang.root / "nowhere")}, ok=False)
    assert missing["code"] == "no-run"


def other_run(gang, run_id: str) -> dict:
    """Return the request of another run on the node of a gang of one."""
    return {**gang.spec(0, ["sleep 300"]), "run_id": run_id, "run_dir": str(gang.root / "node-9"), "alone": True}


def test_run_that_must_be_alone_is_refused_while_another_run_is_in_progress(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    gang.wait(state={"running"})
    request = other_run(gang, "second")
    refused = gang.call("start", request, ok=False)
    assert (refused["code"], refused["error"]) == ("busy", "run node-0 is in progress on this node")
    assert gang.call("busy", {"run_dir": request["run_dir"]}) == {"runs": ["node-0"]}
    assert gang.call("busy", {"run_dir": str(gang.dir(0))}) == {"runs": []}
    gang.call("stop", {"run_dir": str(gang.dir(0)), "signal": "SIGTERM", "grace_s": 0})
    assert gang.call("busy", {"run_dir": request["run_dir"]}) == {"runs": []}
    assert gang.call("start", request)["started"]
    # A repeated start, as after a lost connection, is not refused because of itself.
    assert not gang.call("start", request)["started"]


def test_run_that_shares_the_node_starts_beside_another_run(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    assert gang.call("start", {**other_run(gang, "second"), "alone": False})["started"]


def test_only_one_of_two_simultaneous_starts_is_accepted(make_gang) -> None:
    """Two machines whose check found the node idle start their runs at the same moment."""
    gang = make_gang(1)
    requests = [{**other_run(gang, f"r{i}"), "run_dir": str(gang.root / f"node-{i}")} for i in range(4)]
    starts = [gang.popen("start", request) for request in requests]
    answers = [json.loads(start.communicate(timeout=60)[0].splitlines()[-1]) for start in starts]
    assert sorted(answer.get("code", "started") for answer in answers) == ["busy"] * 3 + ["started"]


def test_run_whose_agent_died_does_not_keep_the_node_busy(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    status = gang.wait(state={"running"})
    gang.kill(status["agent"]["pid"], signal.SIGKILL)
    gang.until(lambda: gang.running(status["agent"]["pid"]), lambda alive: not alive, 10)
    assert gang.call("busy", {"run_dir": str(gang.root / "node-9")}) == {"runs": []}
