"""Commands that are killed on the point, as often as there are points, on one rehearsal cloud."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.rehearsal import client

SIDE_BY_SIDE = 2
_LIMIT_S = 60


@dataclass
class Warm:
    """A process that forks commands. See `warm.py`."""

    process: subprocess.Popen

    def start(self, bench: Any, *argv: str, die_at: int = 0) -> "Command":
        files = {name: str(bench.work / name) for name in ("out", "err", "steps")}
        start = {"argv": argv, "cwd": str(bench.work), "home": str(bench.home.root), "die_at": die_at, **files}
        return Command(self, argv, self.ask({"start": start})["pid"], *(Path(file) for file in files.values()))

    def run(self, bench: Any, *argv: str, code: int = 0) -> str:
        """A command to its end; what it printed."""
        command = self.start(bench, *argv)
        assert command.wait() == code, command.shown()
        return command.out.read_text()

    def json(self, bench: Any, *argv: str, code: int = 0) -> Any:
        return json.loads(self.run(bench, *argv, "--json", code=code))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@dataclass
class Command:
    """One forked command."""

    warm: Warm
    argv: tuple[str, ...]
    pid: int
    out: Path
    err: Path
    steps: Path

    def wait(self) -> int:
        return self.warm.ask({"wait": self.pid})["status"]

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL, self.shown()

    @property
    def over(self) -> bool:
        state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "Z"

    def shown(self) -> str:
        return f"cloudgpu {' '.join(self.argv)}\n{self.out.read_text()}\n{self.err.read_text()}"


@contextmanager
def warm() -> Iterator[Warm]:
    command = [sys.executable, str(Path(__file__).with_name("warm.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Warm(process)
        process.stdin.close()


@dataclass(frozen=True)
class Point:
    """Where a command dies: at the `nth` call of this name, before its effect or with its answer lost."""

    action: str
    nth: int
    phase: str

    @property
    def rule(self) -> dict[str, Any]:
        return {"do": "hold", "drop": True, "action": self.action, "nth": self.nth, "phase": self.phase}


@dataclass(frozen=True)
class Counted:
    """What an undisturbed command does."""

    actions: tuple[str, ...]
    steps: int

    @property
    def points(self) -> list[Point]:
        """Before each call, reading or changing: that is also after every answer."""
        times = Counter(self.actions)
        return [Point(action, nth, "before") for action in times for nth in range(1, times[action] + 1)]

    @property
    def changes(self) -> list[Point]:
        """Around each call that changes something: before it, and with its answer lost."""
        before = [point for point in self.points if not point.action.startswith(("Describe", "Get", "List"))]
        return [point for one in before for point in (one, replace(one, phase="after_effect"))]

    @property
    def everything(self) -> list[Point]:
        return self.points + [point for point in self.changes if point.phase == "after_effect"]


@dataclass(frozen=True)
class Grave:
    """Where commands of one bench are killed."""

    bench: Any
    warm: Warm

    def run(self, *argv: str, code: int = 0) -> str:
        return self.warm.run(self.bench, *argv, code=code)

    def json(self, *argv: str, code: int = 0) -> Any:
        return self.warm.json(self.bench, *argv, code=code)

    def count(self, *argv: str) -> Counted:
        """Carry a whole command out and count."""
        self.bench.home.debug_log.unlink(missing_ok=True)
        command = self.warm.start(self.bench, "--debug", *argv)
        assert command.wait() == 0, command.shown()
        lines = self.bench.home.debug_log.read_text().splitlines()
        actions = tuple(json.loads(line)["operation"] for line in lines)
        return Counted(actions, len(command.steps.read_text().split()))

    def kill_at(self, point: Point, *argv: str) -> bool:
        """Kill a command at a call; False when it was over before, which is told only of calls that repeat."""
        cloud = self.bench.cloud
        client.put_faults(cloud, [point.rule])
        command = self.warm.start(self.bench, *argv)
        held = self._held(command)
        if held:
            command.kill()
            client.put_faults(cloud, [])
        else:
            assert command.wait() == 0, command.shown()
            assert point.nth > 1, f"{point} was never reached"
        return bool(held)

    def _held(self, command: Command) -> list[dict[str, str]]:
        deadline = time.monotonic() + _LIMIT_S
        while True:
            over = command.over
            held = client.faults(self.bench.cloud)["held"]
            if held or over:
                return held
            assert time.monotonic() < deadline, command.shown()
            time.sleep(0.005)

    def kill_before_step(self, step: int, *argv: str) -> None:
        """Kill a command before its nth change of a file, where it gets that far."""
        command = self.warm.start(self.bench, *argv, die_at=step)
        assert command.wait() in (-signal.SIGKILL, 0), command.shown()

    def check_empty(self, case: object) -> None:
        """Nothing is left in the cloud, in the ledger and in the records."""
        assert self.bench.left() == {}, case
        assert self.json("status")["clusters"] == [], case
        assert [row for row in self.json("cost")["rows"] if row["open_entries"]] == [], case
        assert {path.name for path in self.bench.home.clusters.glob("*/*")} <= {"lease.guard"}, case


@dataclass(frozen=True)
class Graveyard:
    """Clouds side by side, as many as there are cores: cases of one do not meet those of another."""

    graves: tuple[Grave, ...]

    def each(self, cases: Iterable[Any], work: Callable[[Grave, Any], None]) -> None:
        """Work all cases off, each in whatever grave is free; the first failure ends it."""
        waiting = iter(list(cases))
        lock, failed = threading.Lock(), threading.Event()

        def work_off(grave: Grave) -> None:
            while not failed.is_set():
                with lock:
                    case = next(waiting, None)
                if case is None:
                    return
                try:
                    work(grave, case)
                except BaseException:
                    failed.set()
                    raise

        with ThreadPoolExecutor(len(self.graves)) as pool:
            for ended in [pool.submit(work_off, grave) for grave in self.graves]:
                ended.result()


@pytest.fixture(scope="session")
def graveyard(tmp_path_factory: pytest.TempPathFactory, make_bench) -> Iterator[Graveyard]:
    with ExitStack() as stack:
        graves = []
        for number in range(SIDE_BY_SIDE):
            bench = stack.enter_context(make_bench(tmp_path_factory.mktemp(f"grave{number}")))
            bench.recipe()
            bench.run("rehearsal", "start")
            graves.append(Grave(bench, stack.enter_context(warm())))
        yield Graveyard(tuple(graves))


@pytest.fixture(scope="session")
def grave(graveyard) -> Grave:
    return graveyard.graves[0]
