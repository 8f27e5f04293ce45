"""How a gang handles failures of agents, connections and disks."""

import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.system


def test_rank_ignoring_sigterm_is_killed_after_grace_period(make_gang) -> None:
    gang = make_gang()
    gang.start("trap '' TERM; [ $RANK = 1 ] && sleep 0.5 && exit 4; while true; do sleep 0.1; done")
    statuses = [gang.wait(node, within_s=8) for node in (0, 1)]
    assert statuses[0]["ranks"][0]["exit_code"] == -9
    assert not any(gang.running(pid) for pid in gang.pids())


def test_background_processes_of_rank_end_with_run(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 301 & setsid sleep 302 & echo $! >hidden; echo started")
    assert gang.wait()["state"] == "succeeded"
    hidden = int((gang.workdir / "hidden").read_text())
    gang.until(lambda: gang.running(hidden), lambda alive: not alive, 5)


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_agent_ends_its_ranks_and_fails_gang(make_gang, victim: int) -> None:
    gang = make_gang()
    # The child of the rank must die as well, although the parent death signal reaches only the shell.
    gang.start("sleep 303 & echo $! >child-$RANK; wait", reconnect_s=1)
    status = gang.wait(victim, state={"running"})
    gang.until(lambda: list(gang.workdir.glob("child-*")), lambda found: len(found) == 2, 5)
    child = int((gang.workdir / f"child-{victim}").read_text())
    gang.kill(status["agent"]["pid"], signal.SIGKILL)
    gang.until(lambda: gang.running(status["ranks"][0]["pid"]) or gang.running(child), lambda alive: not alive, 3)
    lost = gang.status(victim)
    assert (lost["state"], lost["first_failure"]["node_index"]) == ("lost", victim)
    other = gang.wait(1 - victim, within_s=6)
    assert other["state"] == "failed"
    assert other["first_failure"]["node_index"] == victim
    assert f"lost contact with node {victim}" in other["first_failure"]["reason"]


@pytest.mark.parametrize("victim", [0, 1])
def test_unresponsive_agent_fails_gang(make_gang, victim: int) -> None:
    gang = make_gang()
    gang.start("sleep 300", lost_s=1.5, heartbeat_s=0.2)
    daemon = gang.wait(victim, state={"running"})["agent"]["pid"]
    gang.wait(1 - victim, state={"running"})
    gang.kill(daemon, signal.SIGSTOP)
    other = gang.wait(1 - victim, within_s=6)
    assert other["first_failure"]["reason"] == f"lost contact with node {victim}: silent for 2 s"
    gang.kill(daemon, signal.SIGCONT)
    assert gang.wait(victim, within_s=10)["state"] == "failed"
    assert not any(gang.running(pid) for pid in gang.pids())


def test_node_that_never_joins_fails_gang(make_gang) -> None:
    gang = make_gang(3)
    for node in (0, 1):
        gang.call("start", gang.spec(node, ["echo must not run"], start_timeout_s=3))
    for node in (0, 1):
        status = gang.wait(node, within_s=8)
        assert status["first_failure"]["reason"] == "node 2 did not join within 3 s"
        assert gang.log(node, node) == ""


def test_gang_ignores_connections_without_valid_token(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(0, ["echo ok"], start_timeout_s=4))
    wrong = {**gang.spec(1, ["echo stranger"], reconnect_s=0.3), "run_dir": str(gang.root / "node-x")}
    wrong["gang"] = {**wrong["gang"], "token": "0" * 64}
    gang.call("start", wrong)
    with socket.create_connection(("127.0.0.2", gang.port)) as rubbish:
        rubbish.sendall(b"\xff" * 5000)
        time.sleep(0.5)
        assert gang.status(0)["state"] == "starting"
    gang.call("start", gang.spec(1, ["echo ok"]))
    assert gang.wait(0)["state"] == "succeeded"
    assert gang.log(1, 1) == "ok\n"
    gang.call("stop", {"run_dir": wrong["run_dir"]})


def test_start_reports_port_in_use(make_gang) -> None:
    gang = make_gang()
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", gang.port))
        taken.listen()
        answer = gang.call("start", gang.spec(0, ["true"]), ok=False)
    assert answer["code"] == "port-in-use"
    # The next attempt succeeds.
    gang.start("true")
    assert gang.wait()["state"] == "succeeded"


def test_run_continues_after_start_caller_is_killed(make_gang) -> None:
    gang = make_gang(1)
    spec = gang.spec(0, ["sleep 1; echo alive"])
    caller = gang.popen("start", spec)
    gang.until((gang.dir(0) / "status.json").exists, bool, 10)
    caller.kill()
    caller.communicate()
    assert gang.wait()["state"] == "succeeded"
    assert gang.log(0, 0) == "alive\n"


@pytest.mark.slow
def test_killing_start_at_random_moment_never_duplicates_run(make_gang) -> None:
    for i in range(12):
        gang = make_gang(1)
        spec = gang.spec(0, ["echo once >>count; sleep 0.2"])
        caller = gang.popen("start", spec)
        time.sleep(0.012 * i)
        caller.kill()
        caller.communicate()
        gang.call("start", spec)
        assert gang.wait()["state"] == "succeeded"
        assert (gang.workdir / "count").read_text() == "once\n"


def test_gang_reconnects_after_broken_or_corrupted_connection(make_gang, tmp_path) -> None:
    gang, seen = make_gang(), tmp_path / "seen"
    until_seen = f"until [ -e {seen} ]; do sleep 0.1; done; echo ok"
    gang.call("start", gang.spec(0, [until_seen], lost_s=8))
    proxy = gang.proxy()
    spec = gang.spec(1, [until_seen], lost_s=8)
    spec["gang"] = {**spec["gang"], "port": proxy.port}
    gang.call("start", spec)
    gang.wait(0, state={"running"})
    proxy.cut()
    gang.until(lambda: proxy.connection_count, lambda count: count >= 2, 8)
    time.sleep(0.3)
    proxy.damage = True
    gang.until(lambda: proxy.connection_count, lambda count: count >= 3, 8)
    time.sleep(0.3)
    proxy.dead = list(proxy.sockets)  # the connection is dead, but neither end detects it
    gang.until(lambda: proxy.connection_count, lambda count: count >= 4, 8)
    seen.touch()
    assert [gang.wait(node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]
    proxy.close()


def test_full_disk_does_not_hide_failed_status(make_gang) -> None:
    gang = make_gang(1)
    gang.dir(0).mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(gang.dir(0))]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    try:
        gang.start("yes 'all work and no play'")
        status = gang.wait(within_s=15)
        assert status["state"] == "failed"
        assert status["first_failure"]["rank"] == 0
    finally:
        gang.stop_daemons()
        subprocess.run(["umount", "-l", str(gang.dir(0))], check=True)


def test_killed_guard_and_agent_leave_no_rank_running(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    status = gang.wait(state={"running"})
    agent = status["agent"]["pid"]
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (guard,) = {int(pid) for pid in children} - {status["ranks"][0]["pid"]}
    gang.kill(guard, signal.SIGKILL)
    gang.kill(agent, signal.SIGKILL)
    gang.until(lambda: gang.running(status["ranks"][0]["pid"]), lambda alive: not alive, 3)
