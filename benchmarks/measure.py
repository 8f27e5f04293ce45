"""Helpers for the benchmarks: measure the best of several runs of a process, and print results with their aims."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLOUDGPU = Path(sys.executable).with_name("cloudgpu")


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of one run of a process."""

    cpu_s: float
    wall_s: float


def run(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, times: int = 5) -> Cost:
    """Run a process once to warm the caches, then `times` times, and return the best CPU and wall times."""
    costs = [_once(argv, env or {}) for _ in range(times + 1)][1:]
    return Cost(min(cost.cpu_s for cost in costs), min(cost.wall_s for cost in costs))


def _once(argv: Sequence[str | Path], env: Mapping[str, str]) -> Cost:
    started = time.perf_counter()
    # Without bytecode a checkout is compiled anew by every run, which an installation never is.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, env={**environ, **env}, cwd=ROOT)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, argv))} exited with {child.returncode}")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - started)


def show(what: str, measured: float, aim: float, unit: str) -> None:
    """Print a result, its aim, and whether the aim is met."""
    verdict = "ok  " if measured <= aim else "OVER"
    print(f"{verdict} {what:<58} {measured:>9.3f} {unit:<3} (aim <= {aim:g})")


def show_command(what: str, cost: Cost, aim_s: float) -> None:
    """Print the wall time of a command with its aim, and the CPU time, which other load affects less."""
    show(what, cost.wall_s, aim_s, "s")
    print(f"     {'CPU time':<58} {cost.cpu_s:>9.3f} s")
