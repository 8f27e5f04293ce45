"""Gangs of agent daemons. Each node is simulated by a run directory and a loopback address."""

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

FINAL = {"succeeded", "failed", "cancelled", "lost"}


def until(read, condition, within_s: float):
    """Call `read` until its value satisfies the condition, and return the value."""
    deadline = time.monotonic() + within_s
    while True:
        value = read()
        if condition(value):
            return value
        assert time.monotonic() < deadline, value
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


class Gang:
    """Nodes 0..n-1 of a run, each with its own run directory."""

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

    until = staticmethod(until)
    kill = staticmethod(kill)
    running = staticmethod(running)

    def pids(self) -> list[int]:
        return [rank["pid"] for node in range(self.nodes) for rank in self.status(node)["ranks"]]

    def proxy(self) -> "Proxy":
        return Proxy(self.port)


class Proxy:
    """A proxy between a worker and its head that cuts connections or corrupts data on demand."""

    def __init__(self, to_port: int) -> None:
        self.to_port, self.sockets, self.connection_count = to_port, [], 0
        self.damage, self.dead = False, []
        self.server = socket.create_server(("127.0.0.2", 0))
        self.port = self.server.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept, daemon=True)]
        self.threads[0].start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                try:
                    far = socket.create_connection(("127.0.0.2", self.to_port))
                except OSError:
                    near.close()
                    continue
                self.sockets += [near, far]
                self.connection_count += 1
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
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.cut()
        for thread in self.threads:
            thread.join(5)
        for sock in self.sockets:
            sock.close()


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
