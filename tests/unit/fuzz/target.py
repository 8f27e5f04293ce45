"""A fuzz target: a parser, its input data, and what must hold for every example."""

import json
import resource
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from cloudgpu.cli.render.error import detail_lines, error_json
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import printable

LIMIT_S = 5.0
"""CPU time that one example may take. The slowest valid document takes a fiftieth of it."""
ROOM_BYTES = 1 << 30
"""Address space that one target may take beside what the process has."""

_ALL = {
    "database": None,
    "deadline": None,
    "phases": (Phase.explicit, Phase.generate, Phase.shrink),
    "suppress_health_check": list(HealthCheck),
    "report_multiple_bugs": False,
    "print_blob": False,
}
# The unit tier attacks with the same examples each time: a change is judged by what it does, not by the day's luck.
settings.register_profile("fuzz", max_examples=200, derandomize=True, **_ALL)
settings.register_profile("fuzz-full", max_examples=2_000, derandomize=False, **_ALL)


class HangError(BaseException):
    """An example exceeded the CPU time limit. Not an `Exception`, so that no parser swallows it."""


@dataclass(frozen=True)
class Target:
    """One parser under attack.

    Attributes:
        examples: Strategy for its input: `bytes`, `str` or JSON values.
        parse: Calls the parser, and checks what it accepted.
        allowed: The errors that may reject an example.
        known: Description of a known failure that is being fixed; empty otherwise.
    """

    name: str
    examples: st.SearchStrategy[Any]
    parse: Callable[[Any], object]
    allowed: tuple[type[Exception], ...] = (CloudGpuError,)
    known: str = ""


def attack(target: Target, chosen: settings, *, seeded: int | None = None, seen: Callable[[Any], None] = id) -> None:
    """Attack a target with as many examples as the settings say; `seen` is called with each.

    Raises:
        BaseException: An error that the target does not allow, for the smallest example found.
    """

    @chosen
    @given(target.examples)
    def attacked(example: Any) -> None:
        seen(example)
        check(target, example)

    with _memory_bound(), warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # large examples are what this is about
        (attacked if seeded is None else seed(seeded)(attacked))()


def check(target: Target, example: Any) -> None:
    """Give one example to the parser.

    Raises:
        HangError: The example takes too long.
        Exception: Any that the target does not allow, or an assertion about what was accepted.
    """
    with _time_bound():
        try:
            target.parse(example)
        except target.allowed as err:
            if isinstance(err, CloudGpuError):
                _check_error(err)


def _check_error(err: CloudGpuError) -> None:
    """Check that an error can be shown: on a terminal, and as JSON."""
    assert isinstance(err.message, str)
    assert err.message
    assert isinstance(err.hint, str)
    json.dumps(error_json(err), allow_nan=False)
    for line in (err.message, err.hint, *detail_lines(err)):
        printable(line).encode()


@contextmanager
def _time_bound() -> Iterator[None]:
    """Raise `HangError` when the block exceeds its CPU time. Wall time would fail on a busy machine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang(_number: int, _frame: FrameType | None) -> None:
        message = f"no answer after {LIMIT_S:g} s of CPU time"
        raise HangError(message)

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def _memory_bound() -> Iterator[None]:
    """Limit memory in the block, so that an unbounded allocation fails as an error of the target."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    wanted = taken + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (wanted if soft == resource.RLIM_INFINITY else min(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@cache
def _scratch() -> "tempfile.TemporaryDirectory[str]":
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory if memory.is_dir() else None)


def scratch() -> Path:
    """Return this process's directory for example files; it is removed when the process exits."""
    return Path(_scratch().name)


def written(name: str, content: bytes) -> Path:
    """Write a file of the scratch directory and return its path."""
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
