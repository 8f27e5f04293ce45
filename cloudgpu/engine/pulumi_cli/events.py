"""Convert the CLI's event stream to engine events, and collect its errors."""

import re
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from cloudgpu.clock import Clock
from cloudgpu.engine.base import Event, EventKind, OnEvent, Operation, PreviewStep, Stack
from cloudgpu.engine.redaction import Redactor
from cloudgpu.engine.urn import STACK_TYPE

_OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": "create",
    "update": "update",
    "delete": "delete",
    "create-replacement": "replace",
    "delete-replaced": "delete",
    "read": "read",
    "refresh": "read",
    "import": "adopt",
    "same": "same",
}
"""CLI operations that count as steps. `replace` is omitted, because it only announces two other operations."""
_QUIET: Final = frozenset({"same", "read"})
"""Operations that are counted but not emitted as events."""
_COLOR_MARKUP: Final = re.compile(r"<\{%.*?%\}>")
_REPEATED: Final = re.compile(r"^(update|destroy|refresh|preview) failed$|^resource (plugin|provider) ")
"""Final messages from the CLI that only repeat earlier errors."""


class Listener:
    """The listener for the events of one CLI run. It replaces known secrets in messages.

    `on_event` is called on the Automation API's event thread.
    """

    def __init__(self, stack: Stack, on_event: OnEvent, clock: Clock) -> None:
        self.steps: list[PreviewStep] = []
        self.changes: Counter[Operation] = Counter()
        self.errors: list[tuple[str, str]] = []
        """A (URN, message) pair for every reported error."""
        self.failure: BaseException | None = None
        """First exception raised while processing an event. The thread that waits for the run raises it again."""
        self._stack = stack.name
        self._redactor = Redactor("", (stack.config[key] for key in stack.secrets if key in stack.config))
        self._on_event = on_event
        self._clock = clock
        self._start_times: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def on_event(self, event: Any) -> None:  # noqa: ANN401  `pulumi.automation.EngineEvent`, untyped
        """Process one event."""
        with self._lock:
            try:
                self._process(event)
            except BaseException as err:  # noqa: BLE001  the thread that waits for the run raises it again
                self.failure = self.failure or err

    def _process(self, event: Any) -> None:  # noqa: ANN401
        if event.resource_pre_event is not None:
            self._started(event.resource_pre_event.metadata)
        elif event.res_outputs_event is not None:
            self._done(event.res_outputs_event.metadata)
        elif event.res_op_failed_event is not None:
            self._failed(event.res_op_failed_event.metadata)
        elif event.diagnostic_event is not None:
            self._diagnostic(event.diagnostic_event)

    def _started(self, metadata: Any) -> None:  # noqa: ANN401
        operation = _operation(metadata)
        if operation is None:
            return
        name = _name(metadata.urn)
        self.steps.append(PreviewStep(operation, metadata.urn, metadata.type, name, tuple(metadata.diffs or ())))
        self._start_times[metadata.urn, operation] = self._clock.monotonic()
        if operation not in _QUIET:
            self._emit("start", operation, metadata, _id(metadata))

    def _done(self, metadata: Any) -> None:  # noqa: ANN401
        operation = _operation(metadata)
        if operation is None:
            return
        self.changes[operation] += 1
        if operation not in _QUIET:
            self._emit("done", operation, metadata, _id(metadata))

    def _failed(self, metadata: Any) -> None:  # noqa: ANN401
        operation = _operation(metadata)
        if operation is not None:
            messages = [message for urn, message in self.errors if urn == metadata.urn]
            self._emit("failed", operation, metadata, messages[-1] if messages else "")

    def _diagnostic(self, diagnostic: Any) -> None:  # noqa: ANN401
        message = self._redactor.redact_text(_COLOR_MARKUP.sub("", diagnostic.message).strip())
        urn = diagnostic.urn or ""
        if not message or diagnostic.ephemeral:
            return
        if diagnostic.severity == "error":
            if not _REPEATED.search(message):
                self.errors.append((urn, message))
        elif diagnostic.severity in {"info", "warning"}:
            self._on_event(Event("waiting", "read", self._stack, "pulumi:log", diagnostic.severity, message))

    def _emit(self, kind: EventKind, operation: Operation, metadata: Any, detail: str) -> None:  # noqa: ANN401
        started = self._start_times.get((metadata.urn, operation), self._clock.monotonic())
        seconds = 0.0 if kind == "start" else self._clock.monotonic() - started
        self._on_event(Event(kind, operation, metadata.urn, metadata.type, _name(metadata.urn), detail, seconds))


def _operation(metadata: Any) -> Operation | None:  # noqa: ANN401
    """Return the operation on a cloud resource; None for components, providers, the stack and ignored operations."""
    state = metadata.new or metadata.old
    if metadata.type == STACK_TYPE or metadata.type.startswith("pulumi:providers:"):
        return None
    if state is not None and not state.custom:
        return None
    return _OPERATIONS.get(getattr(metadata.op, "value", metadata.op))


def _id(metadata: Any) -> str:  # noqa: ANN401
    state = metadata.new or metadata.old
    return str(state.id or "") if state is not None else ""


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]
