"""Commands that are killed on the point, as often as there are points, and a cloud that is asked what is left.

A command writes down where it goes (`warm.py` says how); every line of that recording is a place to be killed at.
The nodes only pretend, time is simulated, and a cloud is put back to a kept state instead of being started again.
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
from tests.rehearsal.kills.matrix import Matrix, Shard, stored, timed

SIDE_BY_SIDE = 1 if "PYTEST_XDIST_WORKER" in os.environ else 2
"""Clouds a process: the other cores have a process of their own each."""
_LIMIT_S = 60
_LATEST_S = 1000
_HERE = Path(__file__).parent
_READS = ("Describe", "Get", "List")
_STAYS = ("rehearsal", "ssh", "envs")
"""What of a home no command of a case changes: its cloud, its key, its environments."""


@dataclass(frozen=True)
class Talk:
    """A process that answers one JSON line with another."""

    process: subprocess.Popen

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"{self.process.args} ended with {self.process.wait(_LIMIT_S)}"
        return json.loads(answer)


@contextmanager
def talk(script: str, *args: object) -> Iterator[Talk]:
    command = [sys.executable, str(_HERE / script), *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Talk(process)
        process.stdin.close()


@dataclass(frozen=True)
class Command:
    """One forked command."""

    warm: Talk
    argv: tuple[str, ...]
    pid: int
    files: dict[str, Path]

    def wait(self) -> int:
        return self.warm.ask({"wait": self.pid})["status"]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.shown()

    @property
    def over(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    @property
    def trail(self) -> tuple[str, ...]:
        """The places where it has been."""
        return tuple(self.files["trail"].read_text().splitlines())

    def shown(self) -> str:
        return f"cloudgpu {' '.join(self.argv)}\n{self.files['out'].read_text()}\n{self.files['err'].read_text()}"


@dataclass(frozen=True)
class Recording:
    """Where an undisturbed command went."""

    places: tuple[str, ...]

    @property
    def calls(self) -> list[str]:
        """Around every call: before it is sent, carried out but unanswered, answered."""
        return [place for place in self.places if not place.startswith("file#")]

    @property
    def changes(self) -> list[str]:
        """The same of calls that change something, and before each of the others: that is after every answer too."""
        return [place for place in self.calls if not place.startswith(_READS) or place.endswith(" before")]

    @property
    def around_changes(self) -> list[str]:
        return [place for place in self.calls if not place.startswith(_READS)]

    @property
    def files(self) -> list[str]:
        """Before every change of a file of the home."""
        return [place for place in self.places if place.startswith("file#")]

    @property
    def actions(self) -> set[str]:
        return {place.partition("#")[0] for place in self.calls}


@dataclass
class Sandbox:
    """Where commands of one workspace are killed. `cluster` is the one that a case is about."""

    workspace: Any
    warm: Talk
    clock: Path | None = None
    keeper: Talk | None = None
    cluster: str = "plain"
    _homes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    _abandoned: set[Path] = field(default_factory=set)
    """Leases and unfinished files of killed commands that had recorded nothing yet; `train` names each cluster anew."""

    @property
    def home(self) -> Any:
        return self.workspace.home

    def start(self, *argv: str, die_at: str = "", tag: str = "", still: bool = False) -> Command:
        files = {name: self.workspace.work / f"{name}{tag}" for name in ("out", "err", "trail")}
        where = {
            "cwd": str(self.workspace.work),
            "home": str(self.home.root),
            "clock": str(self.clock or ""),
            "still": still,
        }
        request = {"argv": argv, "die_at": die_at, **where, **{name: str(path) for name, path in files.items()}}
        return Command(self.warm, argv, self.warm.ask({"start": request})["pid"], files)

    def run(self, *argv: str, code: int = 0) -> str:
        """A command to its end; what it printed."""
        command = self.start(*argv)
        assert command.wait() == code, command.shown()
        return command.files["out"].read_text()

    def json(self, *argv: str, code: int = 0) -> Any:
        return json.loads(self.run(*argv, "--json", code=code))

    def forget_quotas(self) -> None:
        """Limits are remembered for some minutes, and a command that remembers them goes another way."""
        for path in self.home.root.glob("catalog/*/quotas.json"):
            path.unlink()

    def record(self, *argv: str) -> Recording:
        """Carry a whole command out and note where it goes."""
        self.forget_quotas()
        command = self.start(*argv)
        assert command.wait() == 0, command.shown()
        return Recording(command.trail)

    def kill_at(self, place: str, *argv: str) -> bool:
        """Kill a command at a place; False when it never came there, as what repeats by chance may not."""
        self.forget_quotas()
        command = self.start(*argv, die_at=place)
        ended = command.wait()
        if ended == 0:
            assert not place.endswith(("#1 before", "#1 effect", "#1 answer")), f"never at {place}\n{command.shown()}"
            return False
        assert ended == -signal.SIGKILL, command.shown()
        return True

    def until_held(self, command: Command, count: int = 1) -> None:
        """Wait until the endpoint holds as many calls."""
        deadline = time.monotonic() + _LIMIT_S
        while len(client.faults(self.workspace.cloud)["held"]) < count:
            assert not command.over, command.shown()
            assert time.monotonic() < deadline, command.shown()
            time.sleep(0.005)

    def under_way(self) -> int:
        """How many calls the endpoint has and has not answered."""
        return self.keeper.ask({"look": ""})["under_way"]

    def land(self) -> None:
        """Let the time come in which whatever is under way has taken effect."""
        self._set_clock(self.ahead_s + _LATEST_S)
        deadline = time.monotonic() + _LIMIT_S
        while self.under_way():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _set_clock(self, ahead_s: float) -> None:
        # In place: whoever reads the mapped file while it is cut to nothing dies of SIGBUS.
        with self.clock.open("r+b") as clock:
            clock.write(struct.pack("<d", ahead_s))

    @property
    def ahead_s(self) -> float:
        """How much simulated time has passed."""
        return struct.unpack("<d", self.clock.read_bytes())[0]

    def keep(self, name: str) -> None:
        """Keep the present state of the cloud and of the home."""
        self.keeper.ask({"keep": name})
        self._homes[name] = {
            str(path.relative_to(self.home.root)): path.read_bytes()
            for path in self.home.root.rglob("*")
            if path.is_file() and path.relative_to(self.home.root).parts[0] not in _STAYS
        }

    def bring(self, name: str) -> None:
        """Put the cloud and the home back to a kept state, and the time with it."""
        if self.under_way():
            self.land()
        self._set_clock(0.0)
        self.keeper.ask({"bring": name})
        self.empty_home()
        for relative, content in self._homes[name].items():
            path = self.home.root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def empty_home(self) -> None:
        """Lose everything that the home knew of its clusters."""
        for path in self.home.root.iterdir():
            if path.name not in _STAYS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def left(self) -> dict[str, Any]:
        """What the endpoint itself says is still there."""
        return self.workspace.left()

    def check_empty(self, case: object, *, begun: bool = True) -> None:
        """Nothing is left in the cloud, in the ledger and in the records.

        Args:
            case: What is shown when something is.
            begun: False where nothing was recorded, so that no command came to clean up: the lease of the killed
                command may lie there, and the next one of that name takes it over.
        """
        assert self.left() == {}, case
        assert RecordStore(self.home).clusters() == [], case
        ledger = open_ledger(f"sqlite:///{self.home.ledger_db}")
        try:
            assert ledger.entries(state="open") == (), case
        finally:
            ledger.dispose()
        left = {path for path in self.home.clusters.glob("*/*") if path.name != "lease.guard"} - self._abandoned
        if not begun:
            self._abandoned |= left
        assert left <= self._abandoned, case


@dataclass(frozen=True)
class SandboxPool:
    """Clouds side by side, as many as there are cores: cases of one do not meet those of another."""

    sandboxes: tuple[Sandbox, ...]
    matrix: Matrix | None = None

    def each(self, cases: Iterable[Any], work: Callable[[Sandbox, Any], None]) -> None:
        """Work all cases off, each in whatever sandbox is free.

        The first failure ends it, but in a run of the matrix: there all cases of the shard are tried, and what has
        passed before is not tried again.
        """
        if self.matrix is None:
            self._work_off(cases, work)
            return
        matrix, test = self.matrix, os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]

        def kept(sandbox: Sandbox, case: Any) -> None:
            with timed(matrix, test, case):
                work(sandbox, case)

        due = matrix.due(test, cases)
        self._work_off(due, kept)
        names = {str(case) for case in due}
        failed = [one for one in stored(matrix.folder) if one.test == test and one.case in names and one.failure]
        assert failed == []

    def _work_off(self, cases: Iterable[Any], work: Callable[[Sandbox, Any], None]) -> None:
        waiting = iter(list(cases))
        lock, failed = threading.Lock(), threading.Event()

        def work_off(sandbox: Sandbox) -> None:
            while not failed.is_set():
                with lock:
                    case = next(waiting, None)
                if case is None:
                    return
                try:
                    work(sandbox, case)
                except BaseException:
                    failed.set()
                    raise

        with ThreadPoolExecutor(len(self.sandboxes)) as pool:
            for ended in [pool.submit(work_off, sandbox) for sandbox in self.sandboxes]:
                ended.result()

    def keep(self, name: str, *argv: str) -> None:
        """In every sandbox: the state after a command, or the empty one that it starts from."""
        for sandbox in self.sandboxes:
            sandbox.bring("empty")
            if argv:
                sandbox.run(*argv)
            sandbox.keep(name)


@contextmanager
def dug(folder: Path, make_workspace: Any) -> Iterator[Sandbox]:
    """A cloud whose nodes pretend, on a simulated time."""
    with ExitStack() as stack:
        workspace = stack.enter_context(make_workspace(folder))
        workspace.recipe()
        clock = folder / "clock"
        clock.write_bytes(bytes(8))
        keeper = stack.enter_context(talk("cloud.py", workspace.home.root, clock))
        keeper.ask({"keep": "empty"})
        sandbox = Sandbox(workspace, stack.enter_context(talk("warm.py")), clock, keeper)
        sandbox.keep("empty")
        yield sandbox


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kill-results", metavar="FOLDER", help="try every case of the kill matrix, and keep what passed")
    parser.addoption("--shard", metavar="K/N", default="1/1", help="with --kill-results: one of N parts of the cases")


@pytest.fixture(scope="session")
def matrix(pytestconfig: pytest.Config) -> Matrix | None:
    folder = pytestconfig.getoption("--kill-results", None)
    return Matrix(Path(folder), Shard.parsed(pytestconfig.getoption("--shard"))) if folder else None


@pytest.fixture(scope="session")
def sandbox_pool(
    tmp_path_factory: pytest.TempPathFactory, make_workspace, matrix: Matrix | None
) -> Iterator[SandboxPool]:
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(f"sandbox{number}") for number in range(SIDE_BY_SIDE)]
        yield SandboxPool(tuple(stack.enter_context(dug(folder, make_workspace)) for folder in folders), matrix)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, make_workspace, matrix: Matrix | None) -> Iterator[SandboxPool]:
    """Clouds whose nodes really run, in real time."""
    with ExitStack() as stack:
        sandboxes = []
        for number in range(SIDE_BY_SIDE):
            workspace = stack.enter_context(make_workspace(tmp_path_factory.mktemp(f"running{number}")))
            workspace.recipe()
            workspace.run("rehearsal", "start")
            sandboxes.append(Sandbox(workspace, stack.enter_context(talk("warm.py"))))
        yield SandboxPool(tuple(sandboxes), matrix)


@pytest.fixture
def sandbox(sandbox_pool) -> Sandbox:
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("empty")
    return sandbox


@pytest.fixture(scope="session")
def upped(sandbox_pool) -> Recording:
    """Where an undisturbed `up` goes; in every sandbox its cluster is kept as `standing`."""
    sandbox_pool.sandboxes[0].bring("empty")
    seen = sandbox_pool.sandboxes[0].record("up", "plain", "--yes")
    sandbox_pool.keep("standing", "up", "plain", "--yes")
    return seen


@pytest.fixture(scope="session")
def downed(sandbox_pool, upped) -> Recording:
    """Where an undisturbed `down` goes."""
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("standing")
    seen = sandbox.record("down", "plain")
    sandbox.check_empty("undisturbed")
    return seen
