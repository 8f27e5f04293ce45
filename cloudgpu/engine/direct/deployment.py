"""The context of one engine run: the gate that stops its worker threads, the clock of an operation, and delays of AWS.

A thread pool does not provide such a gate: an interrupt during `submit` may leave a thread that the pool does not
track.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Protocol

from cloudgpu.aws.resources.handler import ExistingResource, Handler, HandlerContext, Properties
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Event, EventKind, OnEvent, Operation, Stack
from cloudgpu.engine.direct.journal import Journal
from cloudgpu.engine.direct.journal_state import Intent, Row
from cloudgpu.engine.redaction import Redactor, masked_paths
from cloudgpu.errors import AuthError, BadRequestError, CloudError, CloudGpuError, LaunchError, UnsupportedError

RETRY_PERIOD: Final = timedelta(minutes=10)
"""Maximum time from recording an intent to the last attempt at its call; throttled calls are retried."""
_REPORT_EVERY_S: Final = 5.0
OnWait = Callable[[float], None]
"""Called while an operation waits, with the seconds since its start."""


@dataclass(frozen=True)
class Delays:
    """Delays to assume for a cloud, in seconds.

    Attributes:
        call_s: Time during which a call may still take effect after its caller was killed.
        launch_s: Like `call_s`, but for a launch, which returns only after all instances are placed.
        visible_s: Time until a tag search finds a new resource.
    """

    call_s: float
    launch_s: float
    visible_s: float


AWS_DELAYS: Final = Delays(call_s=60.0, launch_s=180.0, visible_s=20.0)
"""Delays for real AWS, based on the calls' time limits and on the time until EC2 lists a new resource."""

OTHER_ENDPOINT_DELAYS: Final = Delays(call_s=1.0, launch_s=1.0, visible_s=1.0)
"""Delays for other endpoints, such as the rehearsal cloud, which lists new resources immediately."""


def delays_at(endpoint: str) -> Delays:
    """Return the delays to assume for the cloud at this endpoint. An empty endpoint means real AWS."""
    return OTHER_ENDPOINT_DELAYS if endpoint else AWS_DELAYS


def launch_visible_by(recorded_at: datetime, now: datetime, delays: Delays) -> datetime:
    """Return the time by which a tag search must find the nodes of a launch whose caller has exited.

    Args:
        recorded_at: Time at which the launch was recorded, before its call was sent.
        now: Time at which the caller is known to have exited.
        delays: Delays to assume for the cloud.
    """
    return min(recorded_at + RETRY_PERIOD, now) + timedelta(seconds=delays.launch_s + delays.visible_s)


def ignore_wait(_elapsed_s: float) -> None:
    """Do not report the wait."""


class WatchedClock:
    """A clock for one operation. It wraps another clock and reports waits.

    `sleep` calls `on_wait` with the seconds since the operation started, at most once every `say_every_s` seconds.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        what: str,
        on_wait: OnWait,
        timeout_s: float | None = None,
        say_every_s: float = _REPORT_EVERY_S,
        hint: str = "increase `custom_timeouts` in the program",
    ) -> None:
        self._clock = clock
        self._what = what
        self._on_wait = on_wait
        self._timeout_s = timeout_s
        self._say_every_s = say_every_s
        self._hint = hint
        self._started = clock.monotonic()
        self._last_report = self._started

    def now(self) -> datetime:
        """Return the current time, timezone-aware, in UTC."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return self._clock.monotonic()

    def elapsed(self) -> float:
        """Return seconds since this clock was created."""
        return self._clock.monotonic() - self._started

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        elapsed = self.elapsed()
        if self._timeout_s is not None and elapsed >= self._timeout_s:
            message = f"{self._what} took longer than its timeout of {self._timeout_s:g} s"
            raise CloudError(message, code="Timeout", hint=self._hint)
        if self._clock.monotonic() - self._last_report >= self._say_every_s:
            self._last_report = self._clock.monotonic()
            self._on_wait(elapsed)
        self._clock.sleep(seconds)


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
