"""Services from start to end, `exec` and `tunnel`: whole commands, real programs, the real OpenSSH client."""

import contextlib
import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.documentation import blocks_for
from tests.rehearsal.conftest import Workspace

pytestmark = pytest.mark.rehearsal

ROOT = Path(__file__).parents[2]
WAIT_S = 60

SERVE = """
    import http.server, os, sys

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            good = self.path == "/ready" or self.path.endswith(os.environ["WEB_TOKEN"])
            self.send_response(int(options["status"]) if good else 403)
            self.end_headers()
            self.wfile.write(b"hello")

    options = dict(one.split("=", 1) for one in sys.argv[1:])
    print("my token is", os.environ["WEB_TOKEN"], flush=True)
    if options["ends"] == "yes":
        sys.exit(0)
    http.server.ThreadingHTTPServer((options["address"], int(options["port"])), Page).serve_forever()
"""
SERVICE = """
    with: service
    command: train.py address={service.address} port={service.port} status={status} ends={ends}
    service: {port: 8899, ready: {http: /ready, within: WITHIN}, page: '/lab?token={token}', token: WEB_TOKEN}
"""
TRAINED = """
    import pathlib, sys, time

    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
"""
BESIDE = """
    with: torchrun
    ranks_per_node: 1
    command: train.py {go}
    beside:
      - name: board
        command: python3 -m http.server --bind {service.address} {service.port}
        port: 8877
        ready: {http: /}
"""


class Watched:
    """A running command and the lines that it has printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        with self._came:
            assert self._came.wait_for(lambda: found() or not self._reader.is_alive(), WAIT_S), self.lines
        match = found()
        assert match is not None, "".join(self.lines)
        return match

    def interrupted(self, code: int = 130) -> str:
        self.process.send_signal(signal.SIGINT)
        return self.ended(code)

    def ended(self, code: int) -> str:
        assert self.process.wait(WAIT_S) == code, "".join(self.lines)
        self._reader.join(WAIT_S)
        return "".join(self.lines)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line)
                self._came.notify_all()
        with self._came:
            self._came.notify_all()


@pytest.fixture(scope="module")
def lab(make_workspace: Callable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Create a two-node cluster that most tests share."""
    with make_workspace(tmp_path_factory.mktemp("lab")) as workspace:
        workspace.recipe("plain", params="{go: ''}", launch=BESIDE, script=TRAINED, metrics="{}", outputs="[]")
        workspace.recipe(
            "web",
            resources="{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}",
            params="{status: 200, ends: 'no'}",
            launch=SERVICE.replace("WITHIN", "60s"),
            script=SERVE,
            metrics="{}",
            outputs="[]",
        )
        workspace.run("up", "plain", "--name", "lab", "--on", "rehearsal", "--yes")
        yield workspace
        workspace.run("down", "lab", "--yes")
        assert workspace.left() == {}


@pytest.fixture
def watch(lab: Workspace) -> Iterator[Callable[..., Watched]]:
    """Return a function that starts a command in a new interpreter, so that Ctrl-C reaches it, and reads its output."""
    begun: list[Watched] = []

    def start(*args: str) -> Watched:
        process = subprocess.Popen(
            [sys.executable, "-m", "cloudgpu", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=lab.work,
            env=lab.environment,
        )
        begun.append(Watched(process))
        return begun[-1]

    yield start
    for one in begun:
        one.close()


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return answer.read()


def test_service_keeps_running_when_its_command_is_interrupted(lab, watch):
    train = watch("train", "web", "--cluster", "lab", "--yes")
    url = train.until(r"http://127\.0\.0\.1:\d+/lab\?token=([0-9a-f]{40})$")
    token = url[1]
    assert get(url[0]) == b"hello"
    train.until(r"^    my token is \*{40}$")
    left = train.interrupted()
    assert re.search(r"^ +web is ready after [\d.]+ s; open this address in a browser:$", left, re.MULTILINE)
    assert "the local port is" in left  # a rehearsal node shares this machine
    assert left.count(token) == 1
    with pytest.raises(OSError, match="refused"):
        get(url[0])
    (run,) = [one["run_id"] for one in lab.json("status")["clusters"][0]["runs"]]
    for path in lab.home.root.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20 and not path.is_relative_to(lab.home.rehearsal):
            assert token.encode() not in path.read_bytes(), path

    tunnel = watch("tunnel", run)
    assert tunnel.until(r"http://\S+")[0] == url[0]
    assert get(url[0]) == b"hello"
    second = lab.run("train", "web", "--cluster", "lab", "--yes", "--share", code=2)
    assert "port 8899 of node 0 is already in use" in second.stderr
    attach = watch("attach", run)
    again = attach.until(r"http://\S+")[0]
    assert get(again) == b"hello"
    assert again != url[0]  # the tunnel has that port
    assert "continues without this command" in attach.interrupted()
    assert lab.json("cancel", run)["state"] == "cancelled"
    tunnel.interrupted()


def test_service_that_exits_before_readiness_fails(lab):
    outcome = lab.json("train", "web", "--cluster", "lab", "--yes", "--set", "ends=yes", code=5)
    assert (outcome["state"], outcome["exit_code"]) == ("failed", 0)
    assert outcome["reason"] == "the service exited before it was ready"
    assert outcome["tail"] == ["my token is " + "*" * 40]


def test_service_that_never_becomes_ready_leaves_nothing_running(lab):
    before = lab.left()
    late = ("status=503", "launch.service.ready.within=1s", "resources.nodes=1")
    outcome = lab.json("train", "web", "--yes", *(word for one in late for word in ("--set", one)), code=5)
    assert outcome["state"] == "failed"
    assert outcome["reason"] == "web is not ready after 1s: GET /ready on port 8899 returned 503"
    assert outcome["tail"][0] == "my token is " + "*" * 40
    assert outcome["left"] == []
    assert lab.left() == before


def test_service_beside_ranks_is_reachable_while_they_run(lab, watch):
    train = watch("train", "plain", "--cluster", "lab", "--yes", "--set", "go=go")
    train.until(r"board is ready after")
    assert b"Directory listing" in get(train.until(r"http://127\.0\.0\.1:\d+/$")[0])
    (run,) = [one["run_id"] for one in lab.json("status")["clusters"][0]["runs"]]
    lab.run("exec", "lab", "--", "touch", f".cloudgpu/runs/{run}/work/go")
    assert "succeeded (simulated)" in train.ended(0)


def test_exec_runs_on_all_nodes_and_reports_failures(lab, watch):
    same = lab.run("exec", "lab", "--", "echo", "a  b")
    assert (same.stdout, same.stderr) == ("nodes 0-1:\n  a  b\n", "")
    different = lab.run("exec", "lab", "--", "hostname; test $(hostname | tail -c 2) = x && exit 3; exit 4", code=5)
    assert re.fullmatch(r"node 0:\n  ip-\S+\nnode 1:\n  ip-\S+\n", different.stdout)
    assert different.stderr == "node 0: failed with exit code 4\nnode 1: failed with exit code 4\n"
    assert lab.run("exec", "lab", "--node", "1", "--", "cat /etc/hostname >/dev/null; printf raw").stdout == "raw"
    rows = lab.json("exec", "lab", "--node", "0-1", "--json", "--", "true")["nodes"]
    assert [(row["node"], row["exit_code"]) for row in rows] == [(0, 0), (1, 0)]
    assert "no command specified" in lab.run("exec", "lab", code=2).stderr
    assert (
        "2 is not an index or ascending range; its nodes are 0 to 1"
        in lab.run("exec", "lab", "--node", "2", "--", "true", code=2).stderr
    )
    assert "cluster nope does not exist" in lab.run("exec", "nope", "--", "true", code=2).stderr
    streamed = watch("exec", "lab", "--stream", "--", "echo up $$; sleep 600")
    for index in (0, 1):
        streamed.until(rf"\[node {index}\] up \d+")
    streamed.interrupted()
    assert lab.run("exec", "lab", "--", "pgrep -f '[s]leep 600' || true").stdout == ""


def test_tunnel_reports_its_ports_and_errors(lab, watch):
    tunnel = watch("tunnel", "lab", "8001", "--node", "1", "--json")
    local = tunnel.until(r"127\.0\.0\.1:(\d+) forwards to port 8001 on node 1 of cluster lab")[1]
    with contextlib.suppress(OSError):
        get(f"http://127.0.0.1:{local}/")
    tunnel.until("nothing is listening on port 8001 on node 1; the tunnel stays open")
    busy = lab.run("tunnel", "lab", "80", "--local", local, code=2).stderr
    assert f"port {local} on this machine is in use" in busy
    closed = tunnel.interrupted()
    assert "tunnel closed; processes on the node keep running" in closed
    assert closed.count('"cluster": "lab"') == 1
    assert "Interrupted" not in closed
    for argv, told in (
        (("tunnel", "lab", "70000"), "70000 is not a port"),
        (("tunnel", "lab", "80", "--node", "7"), "cluster lab has no node 7; its nodes are 0 to 1"),
        (("tunnel", "lab"), "no port specified, and no service is running on cluster lab"),
        (("tunnel", "gone", "80"), "cluster gone does not exist"),
    ):
        assert told in lab.run(*argv, code=2).stderr


def test_services_guide_commands_run_as_documented(lab, tmp_path):
    """Run the documented recipe and commands; the OpenSSH host names are removed by `down`."""
    recipe, block = blocks_for(__file__, "docs/guides/services.md")
    folder = lab.work / "page" / "recipes" / "web"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe)
    here = replace(lab, work=lab.work / "page")
    person = {"HOME": str(tmp_path)}
    told = {}
    for line in (one.partition("#")[0].strip() for one in block.splitlines()):
        program, *words = shlex.split(line.replace("lab", "page"))
        assert program == "cloudgpu"
        told[words[0]] = here.run(*words, env=person).stdout
        if words[0] == "ssh-config":
            config = tmp_path / ".ssh/config"
            argv = ["ssh", "-F", str(config), "page-0", "echo there"]
            done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=WAIT_S)
            assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    assert told["exec"] == "8\n"
    assert "load average" in told["ssh"]
    assert "page-0, page" in told["ssh-config"]
    assert not (tmp_path / ".ssh/config").exists()
    assert json.loads(lab.run("status", "--json").stdout)["clusters"][0]["cluster"] == "lab"
