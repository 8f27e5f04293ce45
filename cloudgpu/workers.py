"""Threads for parallel calls. An interrupt of the caller ends them.

`concurrent.futures.ThreadPoolExecutor` is not used, because leaving its `with` block waits for every call, and so does
the exit of Python: a Ctrl-C then has no effect while calls wait for nodes.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from cloudgpu.clock import SIGNALS_S, CancelScope

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

_GRACE_S: Final = 0.5
"""Seconds that an interrupted caller waits for its calls to end, so that their last lines precede the command's."""


class _Result(Future[T]):
    """A future for which the main thread waits without missing a signal."""

    def result(self, timeout: float | None = None) -> T:
        """Return the result of the call, or raise its exception. Without a timeout, wait as long as it takes."""
        while timeout is None and not self.done():
            with contextlib.suppress(TimeoutError):
                self.exception(SIGNALS_S)
        return super().result(timeout)


class Workers:
    """A pool of threads. Leaving its `with` block waits for all calls.

    If the block is left by an interrupt, calls that have not started are dropped, each running call ends at its next
    wait, and a call that is blocked elsewhere, as in a connection attempt, is abandoned.
    """

    def __init__(self, limit: int, name: str = "cloudgpu") -> None:
        """Create the pool. Threads are started when they are needed.

        Args:
            limit: Maximum number of calls at the same time; at least one is allowed.
            name: Prefix of the names of the threads.
        """
        self._limit, self._name = max(1, limit), name
        self._scope = CancelScope()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.cancel()
            return
        try:
            self._dismiss()
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(SIGNALS_S)
        except BaseException:
            self.cancel()
            raise

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run a call in a thread; its result or exception is in the future."""
        future: Future[T] = _Result()
        self._calls.put(partial(self._settle, future, partial(call, *args, **kwargs)))
        if len(self._threads) < self._limit:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def map(self, call: Callable[[A], T], subjects: Iterable[A]) -> Iterator[T]:
        """Call a function for all subjects, and return the results in the order of the subjects as they arrive.

        After a call has failed, calls that have not started are dropped.
        """
        return _results([self.submit(call, subject) for subject in subjects])

    def cancel(self, grace_s: float = _GRACE_S) -> None:
        """Start no more calls, end the waits of running ones, and wait up to `grace_s` seconds for the calls to end."""
        self._scope.cancel()
        self._dismiss()
        end = time.monotonic() + grace_s
        for thread in self._threads:
            if thread.ident is not None:  # an interrupt may have come between creating and starting a thread
                thread.join(max(0.0, end - time.monotonic()))

    def _dismiss(self) -> None:
        """Let every thread end after the calls before it in the queue."""
        for _ in self._threads:
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call

    def _settle(self, future: "Future[T]", call: Callable[[], T]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = self._scope.run(call)
        except BaseException as err:  # noqa: BLE001 - raised again by the caller that reads the future
            future.set_exception(err)
        else:
            future.set_result(result)


def _results(futures: list["Future[T]"]) -> Iterator[T]:
    try:
        while futures:
            yield futures.pop(0).result()
    finally:
        for future in futures:
            future.cancel()
