"""Sandboxes in which commands are killed at chosen points, and checks that no resource remains.

Each command writes a trace (see `command_server.py`), and every line of the trace is a possible kill point. Nodes and
time are simulated, and between cases a cloud is restored from a snapshot instead of being started again.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.ledger.store import open_ledger
from cloudgpu.rehearsal import client
from cloudgpu.state.record_store import RecordStore
from tests.rehearsal.kills.matrix import Matrix, Shard, load_results, record_result

SANDBOXES = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""Sandboxes per process. With xdist, every worker process has its own."""
SMALL_GRID = 12
"""Cases of a grid that always runs whole."""
_LIMIT_S = 60
_MAX_DELAY_S = 1000
_HERE = Path(__file__).parent
_READ_PREFIXES = ("Describe", "Get", "List")
_UNCHANGED = ("rehearsal", "ssh", "envs")
"""Folders of the state home that no command of a case changes: the cloud, the key and the environments."""


@dataclass(frozen=True)
class JsonProcess:
    """A process that responds to each line of JSON on standard input with a line of JSON."""

    process: subprocess.Popen

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        response = self.process.stdout.readline()
        assert response, f"{self.process.args} exited with status {self.process.wait(_LIMIT_S)}"
        return json.loads(response)


@contextmanager
def json_process(script: str, *args: object) -> Iterator[JsonProcess]:
    """Run a script of this folder as a JSON process until the block ends."""
    command = [sys.executable, str(_HERE / script), *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield JsonProcess(process)
        process.stdin.close()


@dataclass(frozen=True)
class Command:
    """A command that was forked by the command server."""

    server: JsonProcess
    argv: tuple[str, ...]
    pid: int
    files: dict[str, Path]

    def wait(self) -> int:
        return self.server.request({"wait": self.pid})["status"]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.output()

    @property
    def exited(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    @property
    def trace(self) -> tuple[str, ...]:
        """Kill points that the command has reached."""
        return tuple(self.files["trace"].read_text().splitlines())

    def output(self) -> str:
        """Return the command line, standard output and standard error."""
        return f"cloudgpu {' '.join(self.argv)}\n{self.files['out'].read_text()}\n{self.files['err'].read_text()}"


@dataclass(frozen=True)
class KillPoints:
    """Kill points that an uninterrupted command reaches, in order."""

    all: tuple[str, ...]

    @property
    def calls(self) -> list[str]:
        """Points around each API call: before it is sent, after it has taken effect, and after its response is read."""
        return [point for point in self.all if not point.startswith(("file#", "step "))]

    @property
    def changes(self) -> list[str]:
        """Points around each mutating call and before each read, which cover the time after every response too."""
        return [point for point in self.calls if not point.startswith(_READ_PREFIXES) or point.endswith(" before")]

    @property
    def around_changes(self) -> list[str]:
        """Points around each mutating call."""
        return [point for point in self.calls if not point.startswith(_READ_PREFIXES)]

    @property
    def files(self) -> list[str]:
        """Points before each file change in the state home."""
        return [point for point in self.all if point.startswith("file#")]

    @property
    def steps(self) -> list[str]:
        """Points before and after each step of a command that makes no API calls."""
        return [point for point in self.all if point.startswith("step ")]

    @property
    def actions(self) -> set[str]:
        """Names of the API actions that the command calls."""
        return {point.partition("#")[0] for point in self.calls}


@dataclass
class Sandbox:
    """A workspace in which commands are killed. `cluster` is the name of the cluster under test."""

    workspace: Any
    command_server: JsonProcess
    clock: Path | None = None
    cloud_server: JsonProcess | None = None
    cluster: str = "plain"
    _saved_homes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _abandoned_files: set[Path] = field(default_factory=set)
    """Leases and unfinished files of commands that were killed before they recorded a cluster. They accumulate because
    every `train` creates a cluster with a new name."""

    @property
    def home(self) -> Any:
        return self.workspace.home

    def start(self, *argv: str, kill_at: str = "", tag: str = "", freeze_clock: bool = False) -> Command:
        files = {name: self.workspace.work / f"{name}{tag}" for name in ("out", "err", "trace")}
        context = {
            "cwd": str(self.workspace.work),
            "home": str(self.home.root),
            "clock": str(self.clock or ""),
            "freeze_clock": freeze_clock,
        }
        request = {"argv": argv, "kill_at": kill_at, **context, **{name: str(path) for name, path in files.items()}}
        return Command(self.command_server, argv, self.command_server.request({"start": request})["pid"], files)

    def run(self, *argv: str, code: int = 0) -> str:
        """Run a command and return its standard output."""
        command = self.start(*argv)
        assert command.wait() == code, command.output()
        return command.files["out"].read_text()

    def json(self, *argv: str, code: int = 0) -> Any:
        return json.loads(self.run(*argv, "--json", code=code))

    def clear_quota_cache(self) -> None:
        """Delete the cached quotas, because a command that reads them from the cache makes different calls."""
        for path in self.home.root.glob("catalog/*/quotas.json"):
            path.unlink()

    def kill_points(self, *argv: str) -> KillPoints:
        """Run a command to completion and return the kill points that it reached."""
        self.clear_quota_cache()
        command = self.start(*argv)
        assert command.wait() == 0, command.output()
        return KillPoints(command.trace)

    def kill_at(self, point: str, *argv: str) -> bool:
        """Kill a command at a point. Return False if it never reached the point, because some calls vary in number."""
        self.clear_quota_cache()
        command = self.start(*argv, kill_at=point)
        status = command.wait()
        if status == 0:
            assert not point.endswith(("#1 before", "#1 effect", "#1 answer")), (
                f"{point} was not reached\n{command.output()}"
            )
            return False
        assert status == -signal.SIGKILL, command.output()
        return True

    def until_held(self, command: Command, count: int = 1) -> None:
        """Wait until the endpoint holds at least `count` calls."""
        deadline = time.monotonic() + _LIMIT_S
        while len(client.faults(self.workspace.cloud)["held"]) < count:
            assert not command.exited, command.output()
            assert time.monotonic() < deadline, command.output()
            time.sleep(0.005)

    def pending_calls(self) -> int:
        """Return the number of calls that the endpoint has received but not answered."""
        return self.cloud_server.request({"status": ""})["pending_calls"]

    def finish_pending_calls(self) -> None:
        """Advance the clock past the longest delay and wait until no call is pending."""
        self._set_clock(self.clock_offset_s + _MAX_DELAY_S)
        deadline = time.monotonic() + _LIMIT_S
        while self.pending_calls():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _set_clock(self, offset_s: float) -> None:
        # Write in place: a process that reads the mapped file while it is truncated gets SIGBUS.
        with self.clock.open("r+b") as clock:
            clock.write(struct.pack("<d", offset_s))

    @property
    def clock_offset_s(self) -> float:
        """Simulated time that has passed, in seconds."""
        return struct.unpack("<d", self.clock.read_bytes())[0]

    def save(self, name: str) -> None:
        """Save a snapshot of the cloud and the state home."""
        self.cloud_server.request({"save": name})
        self._saved_homes[name] = {
            str(path.relative_to(self.home.root)): path.read_bytes()
            for path in self.home.root.rglob("*")
            if path.is_file() and path.relative_to(self.home.root).parts[0] not in _UNCHANGED
        }

    def restore(self, name: str) -> None:
        """Restore a snapshot of the cloud and the state home, and reset the clock."""
        if self.pending_calls():
            self.finish_pending_calls()
        self._set_clock(0.0)
        self.cloud_server.request({"restore": name})
        self.empty_home()
        for relative, content in self._saved_homes[name].items():
            path = self.home.root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def empty_home(self) -> None:
        """Delete everything that the state home contains about clusters."""
        for path in self.home.root.iterdir():
            if path.name not in _UNCHANGED:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def remaining_resources(self) -> dict[str, Any]:
        """Return the existing resources by kind, as reported by the endpoint itself."""
        return self.workspace.left()

    def check_empty(self, case: object, *, recorded: bool = True) -> None:
        """Check that the cloud, the ledger and the records are empty.

        Args:
            case: Shown if the check fails.
            recorded: False if the killed command had not recorded a cluster, so no command has cleaned up. Its lease
                may remain; the next command for a cluster of that name takes it over.
        """
        assert self.remaining_resources() == {}, case
        assert RecordStore(self.home).clusters() == [], case
        ledger = open_ledger(f"sqlite:///{self.home.ledger_db}")
        try:
            assert ledger.entries(state="open") == (), case
        finally:
            ledger.engine.dispose()
        files = {path for path in self.home.clusters.glob("*/*") if path.name != "lease.guard"} - self._abandoned_files
        if not recorded:
            self._abandoned_files |= files
        assert files <= self._abandoned_files, case


@dataclass(frozen=True)
class SandboxPool:
    """Independent sandboxes that run cases in parallel."""

    sandboxes: tuple[Sandbox, ...]
    shard: Shard
    matrix: Matrix | None = None

    def run_cases(self, cases: Iterable[Any], run_case: Callable[[Sandbox, Any], None]) -> None:
        """Run every case of the shard, and of a small grid every case, in the next free sandbox.

        Stop at the first failure, except in a run of the kill matrix: it runs all cases of its shard that have not
        passed yet, and fails at the end.
        """
        if self.matrix is None:
            everything = list(cases)
            small = len(everything) <= SMALL_GRID
            self._run([case for case in everything if small or self.shard.contains(str(case))], run_case)
            return
        matrix, test = self.matrix, os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]

        def run_and_record(sandbox: Sandbox, case: Any) -> None:
            with record_result(matrix, test, case):
                run_case(sandbox, case)

        pending = matrix.pending(test, cases)
        self._run(pending, run_and_record)
        names = {str(case) for case in pending}
        results = load_results(matrix.folder)
        failed = [result for result in results if result.test == test and result.case in names and result.failure]
        assert failed == []

    def _run(self, cases: Iterable[Any], run_case: Callable[[Sandbox, Any], None]) -> None:
        queue = iter(list(cases))
        lock, failed = threading.Lock(), threading.Event()

        def run_queued(sandbox: Sandbox) -> None:
            while not failed.is_set():
                with lock:
                    case = next(queue, None)
                if case is None:
                    return
                try:
                    run_case(sandbox, case)
                except BaseException:
                    failed.set()
                    raise

        with ThreadPoolExecutor(len(self.sandboxes)) as pool:
            for future in [pool.submit(run_queued, sandbox) for sandbox in self.sandboxes]:
                future.result()

    def save(self, name: str, *argv: str) -> None:
        """Save a snapshot in every sandbox: the state after a command, or the empty state if there is no command."""
        for sandbox in self.sandboxes:
            sandbox.restore("empty")
            if argv:
                sandbox.run(*argv)
            sandbox.save(name)


@contextmanager
def simulated_sandbox(folder: Path, make_workspace: Any) -> Iterator[Sandbox]:
    """Open a sandbox with simulated nodes and simulated time, and save its `empty` snapshot."""
    with ExitStack() as stack:
        workspace = stack.enter_context(make_workspace(folder))
        workspace.recipe()
        clock = folder / "clock"
        clock.write_bytes(bytes(8))
        cloud_server = stack.enter_context(json_process("cloud_server.py", workspace.home.root, clock))
        cloud_server.request({"save": "empty"})
        command_server = stack.enter_context(json_process("command_server.py"))
        sandbox = Sandbox(workspace, command_server, clock, cloud_server)
        sandbox.save("empty")
        yield sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kill-results", metavar="FOLDER", help="run every case of the kill matrix, and store the results"
    )


@pytest.fixture(scope="session")
def shard(pytestconfig: pytest.Config) -> Shard:
    """Part of the large grids that this run covers: of each grid, every case if the long variants run too."""
    if pytestconfig.getoption("--full") and not pytestconfig.getoption("--kill-results", None):
        return Shard()
    return Shard.parse(pytestconfig.getoption("--shard"))


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config, shard: Shard) -> Matrix | None:
    folder = pytestconfig.getoption("--kill-results", None)
    return Matrix(Path(folder), shard) if folder else None


@pytest.fixture(scope="session")
def sandbox_pool(
    tmp_path_factory: pytest.TempPathFactory, make_workspace, shard: Shard, matrix: Matrix | None
) -> Iterator[SandboxPool]:
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(f"sandbox{number}") for number in range(SANDBOXES)]
        yield SandboxPool(
            tuple(stack.enter_context(simulated_sandbox(folder, make_workspace)) for folder in folders), shard, matrix
        )


@pytest.fixture(scope="module")
def real_node_pool(
    tmp_path_factory: pytest.TempPathFactory, make_workspace, shard: Shard, matrix: Matrix | None
) -> Iterator[SandboxPool]:
    """Sandboxes with real node processes and real time."""
    with ExitStack() as stack:
        sandboxes = []
        for number in range(SANDBOXES):
            workspace = stack.enter_context(make_workspace(tmp_path_factory.mktemp(f"running{number}")))
            workspace.recipe()
            workspace.run("rehearsal", "start")
            sandboxes.append(Sandbox(workspace, stack.enter_context(json_process("command_server.py"))))
        yield SandboxPool(tuple(sandboxes), shard, matrix)


@pytest.fixture
def sandbox(sandbox_pool) -> Sandbox:
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.restore("empty")
    return sandbox


@pytest.fixture(scope="session")
def up_points(sandbox_pool) -> KillPoints:
    """Kill points of an uninterrupted `up`. Also saves the snapshot `cluster` in every sandbox."""
    sandbox_pool.sandboxes[0].restore("empty")
    points = sandbox_pool.sandboxes[0].kill_points("up", "plain", "--yes")
    sandbox_pool.save("cluster", "up", "plain", "--yes")
    return points


@pytest.fixture(scope="session")
def down_points(sandbox_pool, up_points) -> KillPoints:
    """Kill points of an uninterrupted `down`."""
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.restore("cluster")
    points = sandbox.kill_points("down", "plain")
    sandbox.check_empty("uninterrupted")
    return points
