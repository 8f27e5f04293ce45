"""The agent's daemons with real processes: several run directories and loopback addresses play the nodes."""

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cloudgpu.node.payload import agent_name, agent_source

pytestmark = pytest.mark.system

FINAL = {"succeeded", "failed", "cancelled", "lost"}


class Gang:
    """Nodes 0..n-1 of one run, each with a run directory of its own."""

    def __init__(self, root: Path, agent: Path, nodes: int = 2) -> None:
        self.root, self.agent, self.nodes = root, agent, nodes
        self.run_id, self.token, self.port = f"run-{secrets.token_hex(4)}", secrets.token_hex(32), free_port()
        self.workdir = root / "work"
        self.workdir.mkdir(parents=True)

    def spec(self, node: int, scripts: list[str], **more: object) -> dict:
        first = node * len(scripts)
        ranks = [
            {
                "rank": first + i,
                "local_rank": i,
                "argv": ["bash", "-c", script],
                "env": {"RANK": str(first + i), "NODE": str(node)},
            }
            for i, script in enumerate(scripts)
        ]
        gang = {"head_address": "127.0.0.2", "port": self.port, "token": self.token, "nodes": self.nodes}
        spec = {"run_id": self.run_id, "run_dir": str(self.dir(node)), "workdir": str(self.workdir), "node_index": node}
        return {**spec, "ranks": ranks, "secrets": {}, "gang": gang, "grace_s": 1, **more}

    def dir(self, node: int) -> Path:
        return self.root / f"node-{node}"

    def call(self, verb: str, spec: dict, *, ok: bool = True) -> dict:
        done = self.popen(verb, spec)
        out, err = done.communicate(timeout=60)
        assert (done.returncode == 0) is ok, (out, err)
        return json.loads(out.splitlines()[-1])

    def popen(self, verb: str, spec: dict) -> subprocess.Popen:
        argv = [sys.executable, str(self.agent), verb]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def start(self, *scripts: str, **more: object) -> None:
        for node in range(self.nodes):
            self.call("start", self.spec(node, list(scripts), **more))

    def status(self, node: int = 0) -> dict:
        return self.call("status", {"run_dir": str(self.dir(node))})

    def wait(self, node: int = 0, *, within_s: float = 30, state: set[str] = FINAL) -> dict:
        return until(lambda: self.status(node), lambda status: status["state"] in state, within_s)

    def log(self, rank: int, node: int) -> str:
        path = self.dir(node) / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def stop_daemons(self) -> None:
        for path in self.root.glob("node-*/status.json"):
            status = json.loads(path.read_text())
            if status["state"] not in FINAL:
                kill(status["agent"]["pid"], signal.SIGKILL)


def until(look, good, within_s: float):
    deadline = time.monotonic() + within_s
    while True:
        seen = look()
        if good(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


def kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def free_port() -> int:
    while True:
        port = 20000 + secrets.randbelow(12000)
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.2", port))
            except OSError:
                continue
            return port


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / agent_name()
    path.write_bytes(agent_source())
    return path


@pytest.fixture
def make_gang(tmp_path: Path, agent: Path):
    gangs = []

    def make(nodes: int = 2) -> Gang:
        gangs.append(Gang(tmp_path / f"gang-{len(gangs)}", agent, nodes))
        return gangs[-1]

    yield make
    for gang in gangs:
        gang.stop_daemons()


def pids(gang: Gang) -> list[int]:
    return [rank["pid"] for node in range(gang.nodes) for rank in gang.status(node)["ranks"]]


def test_a_gang_succeeds(make_gang) -> None:
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


def test_no_rank_starts_before_every_node_is_there(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(0, ["date"]))
    time.sleep(0.5)
    assert gang.status(0)["state"] == "starting"
    assert gang.status(0)["ranks"][0]["state"] == "pending"
    gang.call("start", gang.spec(1, ["date"]))
    assert gang.wait(0)["state"] == "succeeded"


def test_a_bad_exit_stops_the_gang_and_names_the_rank(make_gang) -> None:
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
    assert not any(running(pid) for pid in pids(gang))


def test_the_first_of_two_failures_is_the_one_named(make_gang) -> None:
    gang = make_gang()
    # Rank 0 fails on the head, a moment after rank 1 failed on the worker.
    gang.start("while [ ! -e go ]; do sleep 0.01; done; [ $RANK = 1 ] && exit 9; sleep 0.1; exit 1")
    gang.wait(1, state={"running"})
    (gang.workdir / "go").touch()
    assert gang.wait(0)["first_failure"]["rank"] == 1


def test_a_killed_rank_is_named_with_its_signal(make_gang) -> None:
    gang = make_gang()
    gang.start("sleep 300")
    victim = gang.wait(1, state={"running"})["ranks"][0]["pid"]
    kill(victim, signal.SIGKILL)
    failure = gang.wait(0, within_s=5)["first_failure"]
    assert (failure["rank"], failure["exit_code"], failure["node_index"]) == (1, -9, 1)
    assert "SIGKILL" in failure["reason"]


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(make_gang) -> None:
    gang = make_gang()
    gang.start("trap '' TERM; [ $RANK = 1 ] && sleep 0.5 && exit 4; while true; do sleep 0.1; done")
    statuses = [gang.wait(node, within_s=8) for node in (0, 1)]
    assert statuses[0]["ranks"][0]["exit_code"] == -9
    assert not any(running(pid) for pid in pids(gang))


def test_what_a_rank_leaves_running_ends_with_the_run(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 301 & setsid sleep 302 & echo $! >hidden; echo started")
    assert gang.wait()["state"] == "succeeded"
    hidden = int((gang.workdir / "hidden").read_text())
    until(lambda: running(hidden), lambda alive: not alive, 5)


def test_a_program_that_is_not_there(make_gang) -> None:
    gang = make_gang(1)
    spec = gang.spec(0, ["true"])
    spec["ranks"][0]["argv"] = ["no-such-program"]
    gang.call("start", spec)
    failure = gang.wait()["first_failure"]
    assert failure["exit_code"] == 127
    assert "no-such-program" in failure["reason"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_agent_takes_its_ranks_along_and_fails_the_gang(make_gang, victim: int) -> None:
    gang = make_gang()
    # The rank's own child must die as well: the kernel's death signal reaches the shell only.
    gang.start("sleep 303 & echo $! >child-$RANK; wait", reconnect_s=1)
    status = gang.wait(victim, state={"running"})
    until(lambda: list(gang.workdir.glob("child-*")), lambda found: len(found) == 2, 5)
    child = int((gang.workdir / f"child-{victim}").read_text())
    kill(status["agent"]["pid"], signal.SIGKILL)
    until(lambda: running(status["ranks"][0]["pid"]) or running(child), lambda alive: not alive, 3)
    lost = gang.status(victim)
    assert (lost["state"], lost["first_failure"]["node_index"]) == ("lost", victim)
    other = gang.wait(1 - victim, within_s=6)
    assert other["state"] == "failed"
    assert other["first_failure"]["node_index"] == victim
    assert f"lost contact with node {victim}" in other["first_failure"]["reason"]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_silent_agent_fails_the_gang(make_gang, victim: int) -> None:
    gang = make_gang()
    gang.start("sleep 300", lost_s=1.5, heartbeat_s=0.2)
    daemon = gang.wait(victim, state={"running"})["agent"]["pid"]
    gang.wait(1 - victim, state={"running"})
    kill(daemon, signal.SIGSTOP)
    other = gang.wait(1 - victim, within_s=6)
    assert other["first_failure"]["reason"] == f"lost contact with node {victim}: silent for 2 s"
    kill(daemon, signal.SIGCONT)
    assert gang.wait(victim, within_s=10)["state"] == "failed"
    assert not any(running(pid) for pid in pids(gang))


def test_a_node_that_never_shows_up_fails_the_gang(make_gang) -> None:
    gang = make_gang(3)
    for node in (0, 1):
        gang.call("start", gang.spec(node, ["echo must not run"], start_timeout_s=1))
    for node in (0, 1):
        status = gang.wait(node, within_s=8)
        assert status["first_failure"]["reason"] == "node 2 did not join within 1 s"
        assert gang.log(node, node) == ""


def test_a_stranger_without_the_token_changes_nothing(make_gang) -> None:
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


@pytest.mark.parametrize("node", [0, 1])
def test_stop_from_any_node_cancels_all(make_gang, node: int) -> None:
    gang = make_gang()
    gang.start("trap 'echo saved; exit 0' TERM; while true; do sleep 0.05; done")
    for each in (0, 1):
        until(lambda each=each: gang.status(each)["state"], lambda state: state == "running", 5)
    time.sleep(0.3)
    began = time.monotonic()
    assert gang.call("stop", {"run_dir": str(gang.dir(node)), "grace_s": 5})["state"] == "cancelled"
    assert gang.wait(1 - node, within_s=5)["state"] == "cancelled"
    assert time.monotonic() - began < 5
    assert all(gang.log(each, each).endswith("saved\n") for each in (0, 1))
    assert gang.call("stop", {"run_dir": str(gang.dir(node))})["state"] == "cancelled"


def test_stop_with_a_checkpoint_signal_reaches_the_rank_only(make_gang) -> None:
    gang = make_gang(1)
    # Its helper would die of SIGUSR1, as a data loader does.
    gang.start(
        "sleep 304 & c=$!; trap 'kill -0 $c && echo helper lives; exit 0' USR1; echo ready; while true; do wait; done"
    )
    until(lambda: gang.log(0, 0), lambda log: "ready" in log, 5)
    stopped = gang.call("stop", {"run_dir": str(gang.dir(0)), "signal": "SIGUSR1", "grace_s": 5})
    assert stopped["state"] == "cancelled"
    assert gang.log(0, 0) == "ready\nhelper lives\n"


def test_stop_before_the_gang_has_formed(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(1, ["true"], reconnect_s=0.5))
    assert gang.call("stop", {"run_dir": str(gang.dir(1))})["state"] == "cancelled"


def test_starting_twice_is_one_run(make_gang) -> None:
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


def test_two_runs_at_once_do_not_meet(make_gang) -> None:
    first, second = make_gang(), make_gang()
    first.start("sleep 1; echo $RANK")
    second.start("exit 7")
    assert second.wait()["state"] == "failed"
    assert [first.wait(node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]


def test_a_taken_port_is_an_error_of_start(make_gang) -> None:
    gang = make_gang()
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", gang.port))
        taken.listen()
        answer = gang.call("start", gang.spec(0, ["true"]), ok=False)
    assert answer["code"] == "port-in-use"
    # Nothing stands in the way of the next try.
    gang.start("true")
    assert gang.wait()["state"] == "succeeded"


def test_a_secret_reaches_the_ranks_and_nothing_else(make_gang) -> None:
    gang = make_gang()
    secret = f"secret-{secrets.token_hex(16)}"
    gang.start("[ ${#PASSWORD} = 39 ] && touch ok-$RANK; sleep 300", secrets={"PASSWORD": secret})
    until(lambda: list(gang.workdir.glob("ok-*")), lambda found: len(found) == 2, 10)
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


def test_the_caller_may_die_at_once(make_gang) -> None:
    gang = make_gang(1)
    spec = gang.spec(0, ["sleep 1; echo alive"])
    caller = gang.popen("start", spec)
    until((gang.dir(0) / "status.json").exists, bool, 10)
    caller.kill()
    caller.communicate()
    assert gang.wait()["state"] == "succeeded"
    assert gang.log(0, 0) == "alive\n"


def test_start_killed_at_random_moments_never_doubles_a_run(make_gang) -> None:
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


class Proxy:
    """Stands between a worker and its head; cuts every connection, or damages what passes, when asked."""

    def __init__(self, to_port: int) -> None:
        self.to_port, self.pairs, self.made = to_port, [], 0
        self.damage, self.dead = False, []
        self.server = socket.create_server(("127.0.0.2", 0))
        self.port = self.server.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.2", self.to_port))
                self.pairs += [near, far]
                self.made += 1
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self.pump, args=pair, daemon=True)
                    self.threads.append(thread)
                    thread.start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if self.damage and b"false" in data:
                    self.damage, data = False, data.replace(b"false", b"true ")
                if source not in self.dead:
                    sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for sock in self.pairs:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.cut()
        for thread in self.threads:
            thread.join(5)
        for sock in self.pairs:
            sock.close()


def test_a_broken_or_damaged_connection_is_made_anew(make_gang) -> None:
    gang = make_gang()
    gang.call("start", gang.spec(0, ["sleep 6; echo ok"], lost_s=4))
    proxy = Proxy(gang.port)
    spec = gang.spec(1, ["sleep 6; echo ok"], lost_s=4)
    spec["gang"] = {**spec["gang"], "port": proxy.port}
    gang.call("start", spec)
    gang.wait(0, state={"running"})
    proxy.cut()
    until(lambda: proxy.made, lambda made: made >= 2, 3)
    time.sleep(0.3)
    proxy.damage = True
    until(lambda: proxy.made, lambda made: made >= 3, 3)
    time.sleep(0.3)
    proxy.dead = list(proxy.pairs)  # the connection is dead, and nobody says so
    until(lambda: proxy.made, lambda made: made >= 4, 4)
    assert [gang.wait(node)["state"] for node in (0, 1)] == ["succeeded", "succeeded"]
    proxy.close()


def test_a_full_disk_does_not_swallow_the_verdict(make_gang) -> None:
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


def test_even_a_killed_guard_leaves_no_rank_behind(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    status = gang.wait(state={"running"})
    agent = status["agent"]["pid"]
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (guard,) = {int(pid) for pid in children} - {status["ranks"][0]["pid"]}
    kill(guard, signal.SIGKILL)
    kill(agent, signal.SIGKILL)
    until(lambda: running(status["ranks"][0]["pid"]), lambda alive: not alive, 3)


def test_files_of_the_ranks_have_the_callers_mask(make_gang) -> None:
    gang = make_gang(1)
    gang.start("umask >mask")
    gang.wait()
    here = os.umask(0o022)
    os.umask(here)
    assert int((gang.workdir / "mask").read_text(), 8) == here


def test_a_gang_of_sixteen(make_gang) -> None:
    gang = make_gang(16)
    gang.start("[ $RANK = 11 ] && exit 5; sleep 300")
    failures = [gang.wait(node)["first_failure"] for node in range(16)]
    assert all(failure == failures[0] for failure in failures)
    assert (failures[0]["rank"], failures[0]["exit_code"]) == (11, 5)


# --- follow


def messages(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_follow_delivers_everything_then_the_status(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in 1 2 3; do echo line $i; sleep 0.2; done; printf 'no newline'", "printf '\\xff\\n'")
    out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {}}).communicate(timeout=30)
    *lines, last = messages(out)
    assert last["status"]["state"] == "succeeded"
    assert "".join(m["data"] for m in lines if m["rank"] == 0) == "line 1\nline 2\nline 3\nno newline"
    assert [(m["data"], m["bytes"]) for m in lines if m["rank"] == 1] == [("\ufffd\n", 2)]


def test_follow_is_quick(make_gang) -> None:
    gang = make_gang(1)
    gang.start("while true; do date +%s.%N; sleep 0.3; done")
    gang.wait(state={"running"})
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    delays = []
    for _ in range(6):
        for line in json.loads(follower.stdout.readline())["data"].split():
            delays.append(time.time() - float(line))
    follower.kill()
    follower.communicate()
    assert sorted(delays)[len(delays) // 2] < 0.3, delays
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})


def test_following_again_loses_and_repeats_nothing(make_gang) -> None:
    gang = make_gang(1)
    gang.start("for i in $(seq 1 400); do echo line $i äöü; [ $((i % 40)) = 0 ] && sleep 0.1; done")
    seen, offset = b"", 0
    for cut in (1, 2, 3, 5, 8, None):
        follower = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {"0": offset}})
        for count, raw in enumerate(follower.stdout, 1):
            message = json.loads(raw)
            if "status" in message:
                break
            assert message["offset"] == offset
            seen += message["data"].encode()
            offset += message["bytes"]
            if count == cut:
                break
        follower.kill()
        follower.communicate()
    assert seen.decode() == "".join(f"line {i} äöü\n" for i in range(1, 401))


def test_every_offset_of_a_finished_log(make_gang) -> None:
    gang = make_gang(1)
    gang.start("printf 'ab\\nä\\n\\nrest'")
    gang.wait()
    log = (gang.dir(0) / "rank-0.log").read_bytes()
    for offset in range(len(log) + 2):
        out, _ = gang.popen("follow", {"run_dir": str(gang.dir(0)), "offsets": {"0": offset}}).communicate(timeout=30)
        *lines, last = messages(out)
        assert "status" in last
        assert sum(m["bytes"] for m in lines) == max(0, len(log) - offset)
        assert "".join(m["data"] for m in lines) == log[offset:].decode("utf-8", "replace")


def test_a_follower_ends_when_nobody_reads_it(make_gang) -> None:
    gang = make_gang(1)
    gang.start("sleep 300")
    gang.wait(state={"running"})
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    time.sleep(0.3)
    assert follower.poll() is None
    follower.stdout.close()
    assert follower.wait(timeout=3) == 1
    follower.stderr.close()
    gang.call("stop", {"run_dir": str(gang.dir(0)), "grace_s": 1})


def test_follow_ends_when_the_agent_dies(make_gang) -> None:
    gang = make_gang(1)
    gang.start("echo before; sleep 300")
    until(lambda: gang.log(0, 0), bool, 5)
    follower = gang.popen("follow", {"run_dir": str(gang.dir(0))})
    kill(gang.status()["agent"]["pid"], signal.SIGKILL)
    *lines, last = messages(follower.communicate(timeout=10)[0])
    assert [m["data"] for m in lines] == ["before\n"]
    assert last["status"]["state"] == "lost"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"run_id": "x", "run_dir": "relative", "workdir": "/", "node_index": 0, "ranks": []},
        {"run_id": "x", "run_dir": "/tmp", "workdir": "/", "node_index": 5, "ranks": [{"rank": 0, "argv": ["a"]}]},
    ],
)
def test_rubbish_is_refused_without_a_traceback(make_gang, spec: dict) -> None:
    gang = make_gang(1)
    answer = gang.call("start", spec, ok=False)
    assert answer["error"].startswith(("start:", "run_dir"))
    assert "grace_s" in gang.call("stop", {"run_dir": "/tmp", "grace_s": "x"}, ok=False)["error"]
    missing = gang.call("status", {"run_dir": str(gang.root / "nowhere")}, ok=False)
    assert missing["code"] == "no-run"
