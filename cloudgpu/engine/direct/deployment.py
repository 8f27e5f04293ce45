"""What one run of the engine works with: the stack, its journal, the handlers, and where its events go."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cloudgpu.aws.resources.base import Handler, HandlerContext, Physical, Properties
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Event, EventKind, OnEvent, Operation, Stack
from cloudgpu.engine.direct.journal import Journal
from cloudgpu.engine.direct.journal_state import Intent, Meta, Row
from cloudgpu.engine.direct.operation_timeout import WatchedClock
from cloudgpu.engine.direct.unanswered_delays import Delays
from cloudgpu.engine.redaction import Redactor, marked_paths
from cloudgpu.errors import AuthError, BadRequestError, CloudGpuError, LaunchError, UnsupportedError


class Registry(Protocol):
    """Where the handlers are looked up; a module with these two functions will do."""

    def handler(self, type_token: str, /) -> Handler:
        """The handler of a resource type; UnsupportedError when there is none."""

    def invoke(self, token: str, args: Properties, clients: Clients, /) -> Mapping[str, Any]:
        """Carry out a provider function; UnsupportedError when it is not known."""


class Subject(Protocol):
    """What an event is about: an intent, a resource, or a resource that is wanted."""

    @property
    def urn(self) -> str:
        """Pulumi's name for it."""

    @property
    def type(self) -> str:
        """Pulumi type token."""

    @property
    def name(self) -> str:
        """Its name in the program."""


@dataclass
class Report:
    """Hands events on, one at a time, and counts what was done."""

    on_event: OnEvent
    changes: Counter[Operation] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def emit(
        self, kind: EventKind, operation: Operation, about: Subject, *, detail: str = "", seconds: float = 0.0
    ) -> None:
        """Pass one event on."""
        with self._lock:
            if kind == "done":
                self.changes[operation] += 1
            self.on_event(Event(kind, operation, about.urn, about.type, about.name, detail, seconds))

    def count(self, operation: Operation) -> None:
        """Count what is not worth an event."""
        with self._lock:
            self.changes[operation] += 1


@dataclass(frozen=True)
class Deployment:
    """Everything that one `up`, `preview`, `refresh` or `destroy` needs."""

    stack: Stack
    journal: Journal
    handlers: Registry
    clients_for: Callable[[str], Clients]
    tags: Mapping[str, str]
    clock: Clock
    redactor: Redactor
    report: Report
    delays: Delays

    def context(self, region: str, token: str, clock: Clock | None = None) -> HandlerContext:
        """What a handler gets."""
        return HandlerContext(self.clients_for(region), clock or self.clock, token, self.tags)

    def watched(self, operation: Operation, about: Subject, timeout_s: float | None = None) -> WatchedClock:
        """A clock that tells the report when a handler waits."""

        def waiting(elapsed_s: float) -> None:
            self.report.emit("waiting", operation, about, detail=f"after {elapsed_s:.0f} s", seconds=elapsed_s)

        what = f"{operation} of {about.type} {about.name!r}"
        return WatchedClock(self.clock, what=what, on_wait=waiting, timeout_s=timeout_s)

    def failed(self, operation: Operation, about: Subject, err: CloudGpuError) -> None:
        """Say so, with no secret in it."""
        err.message = self.redactor.scrubbed(err.message)
        err.args = (err.message, *err.args[1:])
        self.report.emit("failed", operation, about, detail=err.message)


def is_definite(err: CloudGpuError) -> bool:
    """Whether the cloud has answered that it did nothing. A lost connection is no answer."""
    return isinstance(err, LaunchError | BadRequestError | AuthError | UnsupportedError)


def hidden_outputs(redactor: Redactor, inputs: Properties, meta: Meta, outputs: Properties) -> dict[str, Any]:
    """Outputs as the journal may hold them: what was secret on the way in is secret on the way out."""
    return redactor.masked(outputs, {(name,) for name in meta.secret_outputs} | marked_paths(inputs))


def made_row(redactor: Redactor, intent: Intent, physical: Physical, *, tainted: bool = False) -> Row:
    """The row that answers an intent: its resource exists.

    A tainted one only waits for its end, an unsettled one for the update that completes it.
    """
    outputs = hidden_outputs(redactor, intent.inputs, intent.meta, physical.outputs)
    row: Row = {"row": "done", "seq": intent.seq, "id": physical.id, "outputs": outputs, "tainted": tainted}
    return row if physical.settled else {**row, "unsettled": True}
