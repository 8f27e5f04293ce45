"""Run work in parallel, in dependency order."""

from collections.abc import Callable, Hashable, Mapping, Set
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from cloudgpu.engine.direct.shutdown_gate import Gate
from cloudgpu.errors import CloudGpuError
from cloudgpu.workers import Workers

WORKERS = 32

K = TypeVar("K", bound=Hashable)


def run_in_dependency_order(first: Mapping[K, Set[K]], work: Callable[[K], None]) -> dict[K, CloudGpuError]:
    """Call `work` for every key, after the calls for all keys in `first[key]` have succeeded; return the failures.

    Keys that depend on a failed key are skipped; all other keys are processed. Any exception other than `CloudGpuError`
    (a bug or an interrupt) is raised once the work in progress has finished; an interrupt ends its waits.
    """
    waiting = {key: set(before) & set(first) for key, before in first.items()}
    failures: dict[K, CloudGpuError] = {}
    running: dict[Future[None], K] = {}
    gate = Gate()

    def guarded(key: K) -> None:
        with gate:
            work(key)

    try:
        with Workers(WORKERS) as pool, gate.closing():
            while True:
                for key in _ready(waiting, idle=not running, failed=failures):
                    del waiting[key]
                    running[pool.submit(guarded, key)] = key
                if not running:
                    return failures
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    _settle(future, running.pop(future), waiting, failures)
    finally:
        gate.wait()  # calls to AWS in progress are finished, because only their answers say what exists


def _ready(waiting: Mapping[K, set[K]], *, idle: bool, failed: Mapping[K, CloudGpuError]) -> list[K]:
    ready = [key for key, before in waiting.items() if not before]
    if ready or not idle or failed:
        return ready
    # only a damaged journal contains a cycle; still try to delete its resources, which may be billed
    return list(waiting)


def _settle(future: Future[None], key: K, waiting: Mapping[K, set[K]], failures: dict[K, CloudGpuError]) -> None:
    try:
        future.result()
    except CloudGpuError as err:
        failures[key] = err
        return
    for before in waiting.values():
        before.discard(key)
