"""Run tests on a changed copy of the checkout, which itself never changes."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from mutation_testing.changes import Change

MEMORY_BYTES: Final = 6 << 30
"""Limit of the address space of a test process: a changed loop may collect items without end."""
_LEAST_S: Final = 20.0
_SLOWER: Final = 4
"""Times as long as the tests of the unchanged code take, after which a change counts as noticed: it loops or waits."""
_NO_TESTS: Final = 5

Result = Literal["noticed", "unnoticed", "untested"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the tests of one change."""

    module: Path
    change: Change
    result: Result
    seconds: float


class BaselineError(Exception):
    """The tests fail without any change, so they say nothing about changes."""


class Worker:
    """A copy of the checkout in which one change at a time is tested."""

    def __init__(self, root: Path, folder: Path) -> None:
        """Copy the files that git tracks or would add to `folder`."""
        self._root, self._folder = root, folder
        self._baselines: dict[tuple[Path, ...], float] = {}
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)

    def test(self, module: Path, change: Change, tests: Sequence[Path]) -> Outcome:
        """Make a change, run tests, and undo the change."""
        if not tests:
            return Outcome(module, change, "untested", 0.0)
        limit_s = max(_LEAST_S, _SLOWER * self._baseline_s(tuple(tests)))
        path = self._folder / module
        source = path.read_text(encoding="utf-8")
        started = time.monotonic()
        try:
            self._write(path, change.applied_to(source))
            status = self._run(tests, limit_s)
        finally:
            self._write(path, source)
        return Outcome(module, change, "noticed" if status else "unnoticed", time.monotonic() - started)

    def _baseline_s(self, tests: tuple[Path, ...]) -> float:
        if tests not in self._baselines:
            started = time.monotonic()
            status = self._run(tests, None)
            if status not in (0, _NO_TESTS):
                message = f"these tests fail without any change: {' '.join(map(str, tests))}"
                raise BaselineError(message)
            self._baselines[tests] = time.monotonic() - started
        return self._baselines[tests]

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Python compares the time of a source file in whole seconds and its size, and a change may alter neither.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    def _run(self, tests: Sequence[Path], limit_s: float | None) -> int | None:
        """Return the exit code of pytest, or None if it was stopped at the limit."""
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *map(str, tests)],
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        _limit_memory(process.pid)
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _environment(self) -> dict[str, str]:
        home = self._folder.with_name(f"{self._folder.name}-home")
        home.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "HOME": str(home), "PYTHONPATH": str(self._folder)}


def _limit_memory(pid: int) -> None:
    """Set the limit from outside where the system allows it, because code between fork and exec may block a thread."""
    if hasattr(resource, "prlimit"):
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
