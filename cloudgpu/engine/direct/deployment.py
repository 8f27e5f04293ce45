"""The context of one engine run, and the gate that stops its worker threads.

A thread pool does not provide such a gate: an interrupt during `submit` may leave a thread that the pool does not
track.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from cloudgpu.aws.resources.handler import ExistingResource, Handler, HandlerContext, Properties
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Event, EventKind, OnEvent, Operation, Stack
from cloudgpu.engine.direct.journal import Journal
from cloudgpu.engine.direct.journal_state import Intent, Row
from cloudgpu.engine.direct.operation_timeout import WatchedClock
from cloudgpu.engine.direct.unanswered_delays import Delays
from cloudgpu.engine.redaction import Redactor, masked_paths
from cloudgpu.errors import AuthError, BadRequestError, CloudGpuError, LaunchError, UnsupportedError


class StoppedError(Exception):
    """The gate is closed, so new work was rejected. Report the error that closed the gate instead of this one."""


class Gate:
    """A gate that admits work until it is closed. Wrap each piece of work in `with gate:`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise StoppedError
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Reject new work."""
        with self._changed:
            self._closed = True

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Reject new work once the `with` block is left, for example by an interrupt."""
        try:
            yield
        finally:
            self.close()

    def wait(self) -> None:
        """Wait until all admitted work has finished."""
        with self._changed:
            self._changed.wait_for(lambda: self._inside == 0)


class Registry(Protocol):
    """A registry of resource handlers. A module with these two functions also satisfies this protocol."""

    def handler(self, type_token: str, /) -> Handler:
        """Return the handler for a resource type; raise UnsupportedError if there is none."""

    def invoke(self, token: str, args: Properties, clients: Clients, /) -> Mapping[str, Any]:
        """Call a provider function; raise UnsupportedError if it is unknown."""


class Subject(Protocol):
    """The subject of an event: an intent, a resource or a resource request."""

    @property
    def urn(self) -> str:
        """Pulumi URN."""

    @property
    def type(self) -> str:
        """Pulumi type token."""

    @property
    def name(self) -> str:
        """Logical name in the program."""


@dataclass
class DeploymentReport:
    """The event listener and operation counts of one engine run. Events are emitted one at a time."""

    on_event: OnEvent
    changes: Counter[Operation] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def emit(
        self, kind: EventKind, operation: Operation, about: Subject, *, detail: str = "", seconds: float = 0.0
    ) -> None:
        """Emit an event."""
        with self._lock:
            if kind == "done":
                self.changes[operation] += 1
            self.on_event(Event(kind, operation, about.urn, about.type, about.name, detail, seconds))

    def count(self, operation: Operation) -> None:
        """Count an operation without an event."""
        with self._lock:
            self.changes[operation] += 1


@dataclass(frozen=True)
class Deployment:
    """The context of one `up`, `refresh`, `destroy` or `close`."""

    stack: Stack
    journal: Journal
    handlers: Registry
    clients_for: Callable[[str], Clients]
    tags: Mapping[str, str]
    clock: Clock
    redactor: Redactor
    report: DeploymentReport
    delays: Delays

    def context(self, region: str, token: str, clock: Clock | None = None) -> HandlerContext:
        """Return the context for a handler call."""
        return HandlerContext(self.clients_for(region), clock or self.clock, token, self.tags)

    def watched_clock(self, operation: Operation, about: Subject) -> WatchedClock:
        """Return a clock that emits a `waiting` event while a handler waits."""

        def waiting(elapsed_s: float) -> None:
            self.report.emit("waiting", operation, about, detail=f"after {elapsed_s:.0f} s", seconds=elapsed_s)

        what = f"{operation} of {about.type} {about.name!r}"
        return WatchedClock(self.clock, what=what, on_wait=waiting)

    def failed(self, operation: Operation, about: Subject, err: CloudGpuError) -> None:
        """Mask secrets in the error and emit a failure event."""
        err.message = self.redactor.redact_text(err.message)
        err.args = (err.message, *err.args[1:])
        self.report.emit("failed", operation, about, detail=err.message)


def is_definite_failure(err: CloudGpuError) -> bool:
    """Return True if the cloud rejected the call. After other errors, the outcome is unknown."""
    return isinstance(err, LaunchError | BadRequestError | AuthError | UnsupportedError)


def mask_outputs(redactor: Redactor, inputs: Properties, outputs: Properties) -> dict[str, Any]:
    """Return the outputs for the journal, with all values of secret inputs masked."""
    return redactor.masked(outputs, masked_paths(inputs))


def completion_row(redactor: Redactor, intent: Intent, physical: ExistingResource, *, tainted: bool = False) -> Row:
    """Return the journal row that completes an intent whose resource exists.

    A tainted resource is deleted later. If `physical` is not settled, a later update completes it.
    """
    outputs = mask_outputs(redactor, intent.inputs, physical.outputs)
    row: Row = {"row": "done", "seq": intent.seq, "id": physical.id, "outputs": outputs, "tainted": tainted}
    return row if physical.settled else {**row, "unsettled": True}
