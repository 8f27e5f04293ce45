"""Workspaces in which tests run whole commands on their own rehearsal cloud, with real processes and real SSH.

Importing the modules takes a second and a half per process, so commands and servers are forked from a process that has
already imported them (`forking/`). Tests that depend on the startup itself, for example tests of signals, use
`cold_workspace`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from tests.pseudo_terminal import PseudoTerminal
from tests.rehearsal.forking.fork_client import ForkedPopen, forked_by, run_fork_server

COMMAND_S = 120

TRAIN = """
    import hashlib, json, os, pathlib, sys, time

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = dict(arg.split("=", 1) for arg in sys.argv[1:])
    print(f"rank {rank} of {world} on node {os.environ['CLOUDGPU_NODE_RANK']}", flush=True)
    if "TEST_SECRET" in os.environ:
        print("secret digest", hashlib.sha256(os.environ["TEST_SECRET"].encode()).hexdigest(), flush=True)
    if options.get("wait_for"):
        while not pathlib.Path(options["wait_for"]).exists():
            time.sleep(0.05)
    if int(options.get("fail_rank", -1)) == rank:
        print("the shape of the tensor is wrong", flush=True)
        sys.exit(3)
    if options.get("hang") == "yes":
        time.sleep(600)
    for epoch in range(1, 4):
        print(f"epoch={epoch} accuracy={0.9 + epoch / 100:.2f}", flush=True)
    if rank == 0:
        out = pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"])
        out.joinpath("metrics.json").write_text(json.dumps({"accuracy": 0.93}))
"""


@dataclass(frozen=True)
class Workspace:
    """A state home with its rehearsal cloud, and methods that run commands in it."""

    home: Home
    work: Path
    start: type[subprocess.Popen] = subprocess.Popen
    """Class that starts the processes of commands."""
    home_is_default: bool = False

    @property
    def environment(self) -> dict[str, str]:
        home = {} if self.home_is_default else {"CLOUDGPU_HOME": str(self.home.root)}
        return {**os.environ, **home, "PYTHONUNBUFFERED": "1"}

    def popen(self, *args: str, **more) -> subprocess.Popen:
        environment = {**self.environment, **more.pop("env", {})}
        return self.start(
            [sys.executable, "-m", "cloudgpu", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env=environment,
            **more,
        )

    def run(self, *args: str, code: int | None = 0, env: dict[str, str] | None = None):
        process = self.popen(*args, env=env or {})
        try:
            out, err = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"cloudgpu {' '.join(args)} took more than {COMMAND_S} s\n{out}\n{err}")
        done = subprocess.CompletedProcess(args, process.returncode, out, err)
        if code is not None:
            assert done.returncode == code, f"cloudgpu {' '.join(args)}: {done.returncode}\n{out}\n{err}"
        return done

    def json(self, *args: str, code: int | None = 0, env: dict[str, str] | None = None):
        return json.loads(self.run(*args, "--json", code=code, env=env).stdout)

    @property
    def cloud(self) -> client.RehearsalClient:
        return client.ensure_running(self.home, SystemClock())

    def on_terminal(self, *args: str, columns: int = 80, question: str = "") -> tuple[int, str]:
        """Run a command on a terminal and return its exit code and the final screen, without line wrapping.

        Args:
            args: The arguments of the command.
            columns: Width of the terminal.
            question: Text of the prompt to answer with yes. Default: no prompt.
        """
        terminal = PseudoTerminal(
            [sys.executable, "-m", "cloudgpu", *args],
            environ={**self.environment, "TERM": "xterm-256color"},
            columns=columns,
            cwd=self.work,
            start=self.start,
        )
        terminal.screen.resize(24, 400)
        try:
            if question:
                terminal.until(lambda text: question in text)
                terminal.write("y\n")
            return terminal.end()
        finally:
            terminal.close()

    def until_held(self, process: subprocess.Popen) -> None:
        """Wait until the endpoint holds a call of this process."""
        deadline = time.monotonic() + COMMAND_S
        while not client.faults(self.cloud)["held"]:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def left(self) -> dict:
        """Return the existing resources by kind, as reported by the endpoint itself."""
        return {kind: rows for kind, rows in client.list_resources(self.cloud).items() if rows}

    def recipe(self, name: str = "plain", *, script: str = TRAIN, **sections: str) -> Path:
        """Write a recipe that needs only Python, with two ranks on each of two nodes, and return its folder."""
        folder = self.work / "recipes" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.py").write_text(dedent(script))
        parts = {
            "resources": "{instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}",
            "params": "{fail_rank: -1, hang: 'no', wait_for: ''}",
            "launch": dedent("""
                with: torchrun
                ranks_per_node: 2
                command: train.py fail_rank={fail_rank} hang={hang} wait_for={wait_for}
            """),
            "metrics": dedent(r"""
                accuracy: {pattern: 'accuracy=(?P<value>\S+)', better: higher, at_least: 0.5}
            """),
            "outputs": "[outputs/metrics.json]",
            "budget": "{expiry: 1h}",
            **sections,
        }
        body = "\n".join(f"{key}:\n{indent(text.strip(chr(10)), '  ')}" for key, text in parts.items())
        (folder / "recipe.yaml").write_text(f"schema: 1\nname: {name}\n{body}\n")
        return folder


@contextmanager
def workspace_in(
    folder: Path, start: type[subprocess.Popen] = subprocess.Popen, home: str = "home"
) -> Iterator[Workspace]:
    """Open a workspace below a folder, and stop its rehearsal cloud when the block ends."""
    work = folder / "work"
    work.mkdir()
    workspace = Workspace(Home(folder / home).ensure(), work, start)
    yield workspace
    client.stop(workspace.home)


@contextmanager
def user_workspace(
    folder: Path, monkeypatch: pytest.MonkeyPatch, start: type[subprocess.Popen] = subprocess.Popen
) -> Iterator[Workspace]:
    """Open the workspace of a user whose home directory is `folder` and whose state home has the default location."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("CLOUDGPU_OWNER", "ann")
    for name in ("CLOUDGPU_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    with workspace_in(folder, start, home=".local/share/cloudgpu") as workspace:
        yield replace(workspace, home_is_default=True)


_fork_servers = ExitStack()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start one fork server for all workers of xdist, when the first worker is configured."""
    config = node.config
    if hasattr(os, "pidfd_open"):
        if not hasattr(config, "fork_server"):
            config.fork_server = _fork_servers.enter_context(_start_fork_server())
        node.workerinput["fork_server"] = str(config.fork_server)


def pytest_unconfigure() -> None:
    _fork_servers.close()


@contextmanager
def _start_fork_server() -> Iterator[Path]:
    """Run a fork server until the block ends. It need not listen yet when the block begins."""
    # The path of a Unix socket is limited to 107 bytes, and a temporary folder of pytest may exceed that.
    with tempfile.TemporaryDirectory(prefix="fork server") as folder, run_fork_server(Path(folder) / "socket") as path:
        yield path


@pytest.fixture(scope="session")
def popen_class(pytestconfig: pytest.Config) -> Iterator[type[subprocess.Popen]]:
    """Class that starts the processes of commands: forks them, or starts them normally on systems without pidfd."""
    if not hasattr(os, "pidfd_open"):
        yield subprocess.Popen
        return
    shared = getattr(pytestconfig, "workerinput", {}).get("fork_server")
    with nullcontext(Path(shared)) if shared else _start_fork_server() as path, forked_by(path):
        yield ForkedPopen


@pytest.fixture
def workspace(tmp_path: Path, popen_class: type[subprocess.Popen]) -> Iterator[Workspace]:
    with workspace_in(tmp_path, popen_class) as workspace:
        yield workspace


@pytest.fixture
def cold_workspace(tmp_path: Path) -> Iterator[Workspace]:
    """Workspace that starts a new interpreter for every command, as a shell does."""
    with workspace_in(tmp_path) as workspace:
        yield workspace


@pytest.fixture(scope="session")
def make_workspace(popen_class: type[subprocess.Popen]) -> Callable[[Path], AbstractContextManager[Workspace]]:
    """Function that opens a workspace, for tests that need several of them or share one between cases."""
    return partial(workspace_in, start=popen_class)


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Function that waits until a condition is true."""

    def wait(condition: Callable[[], object], limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"the condition was not met within {limit_s:g} s"
            time.sleep(0.05)

    return wait
