"""Read and edit the exported state of a Pulumi stack, and repair it after a killed command."""

import contextlib
import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from cloudgpu import files
from cloudgpu.aws.resources.handler import ExistingResource, HandlerContext
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.decoding import decode_as, malformed_as
from cloudgpu.engine.base import Event, OnEvent, ResourceState
from cloudgpu.engine.direct.deployment import Delays, Registry
from cloudgpu.engine.direct.protobuf_values import SECRET, SIGNATURE, iter_scalars
from cloudgpu.engine.direct.register import DriftCheckedResource
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.command import stop_abandoned_cli, was_command_killed
from cloudgpu.engine.pulumi_cli.stacks import Document, StackPort
from cloudgpu.engine.redaction import Redactor, is_masked
from cloudgpu.errors import CloudGpuError, StateError
from cloudgpu.files import parse_json
from cloudgpu.paths import unwritable_error

FLEET: Final = "aws:ec2/fleet:Fleet"
SECURITY_GROUP: Final = "aws:ec2/securityGroup:SecurityGroup"
_SECRET: Final = "plaintext"  # noqa: S105  the name of a field
_P = ParamSpec("_P")
_T = TypeVar("_T")
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 5.0
_UNREAD_DOUBT: Final = timedelta(minutes=10)
"""Time within which the cloud is assumed to list every new resource if the time in the note is unreadable."""


def _readable(read: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function raise StateError if the exported state does not have the expected structure."""

    @wraps(read)
    def checked(*args: _P.args, **named: _P.kwargs) -> _T:
        with malformed_as(_unreadable):
            return read(*args, **named)

    return checked


def _unreadable(why: str) -> StateError:
    message = f"the exported state of the Pulumi stack cannot be read: {why}"
    return StateError(
        message,
        hint="inspect it with `pulumi stack export`; `cloudgpu down` still finds the resources by their tags",
    )


@dataclass(frozen=True)
class Pending:
    """A pending operation, which was started but whose completion is not recorded."""

    kind: str
    """Operation type in Pulumi's state, for example `creating`, `updating` or `deleting`."""
    urn: str
    type: str
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Logical name in the program."""
        return self.urn.rpartition("::")[2]


@dataclass(frozen=True)
class RecordedFleet:
    """A fleet in the state, with its target capacity and the number of instances that it launched."""

    urn: str
    id: str
    target: int
    launched: int


@_readable
def resources(document: Document) -> tuple[ResourceState, ...]:
    """Return the cloud resources in the state."""
    return tuple(
        ResourceState(row["urn"], row["type"], row["urn"].rpartition("::")[2], str(row.get("id", "")))
        for row in _all(document)
        if row.get("custom") and not row.get("external") and not row["type"].startswith("pulumi:")
    )


@_readable
def drift_checked_groups(document: Document, region: str) -> list[DriftCheckedResource]:
    """Return the security groups in the state, with the inputs that the program set."""
    return [
        DriftCheckedResource(
            row["type"], row["urn"].rpartition("::")[2], str(row.get("id", "")), region, "", _inputs(row)
        )
        for row in _all(document)
        if row["type"] == SECURITY_GROUP and not row.get("delete") and not row.get("external")
    ]


def _inputs(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that the program set, without the inputs that the SDK and the provider add."""
    inputs: dict[str, Any] = _plain(row.get("inputs") or {})
    return {name: value for name, value in inputs.items() if not name.startswith("__") and name != "region"}


@_readable
def pending_operations(document: Document) -> tuple[Pending, ...]:
    """Return the operations that were started but are not recorded as completed."""
    return tuple(
        Pending(
            operation["type"],
            operation["resource"]["urn"],
            operation["resource"]["type"],
            _plain(operation["resource"].get("inputs") or {}),
        )
        for operation in _deployment(document).get("pending_operations") or ()
    )


@_readable
def recorded_fleets(document: Document) -> tuple[RecordedFleet, ...]:
    """Return every fleet in the state."""
    return tuple(_gang(row) for row in _all(document) if row["type"] == FLEET and not row.get("delete"))


@_readable
def resolve_pending_operations(document: Document, made: Mapping[str, ExistingResource]) -> Document:
    """Return the state with the resources in `made` (by URN) added and all pending operations removed.

    A resource that a pending creation would have replaced is marked for deletion.
    """
    result = copy.deepcopy(document)
    deployment = _deployment(result)
    rows = deployment.setdefault("resources", [])
    for operation in deployment.get("pending_operations") or ():
        resource = operation["resource"]
        physical = made.get(resource["urn"]) if operation["type"] == "creating" else None
        if physical is None:
            continue
        for old in rows:
            if old["urn"] == resource["urn"]:
                old["delete"] = True
        outputs = _sealed(physical.outputs, _secrets(resource.get("inputs") or {}))
        rows.append({**resource, "id": physical.id, "outputs": outputs, **_incomplete(physical)})
    deployment.pop("pending_operations", None)
    return result


def _secrets(value: Any) -> set[str]:  # noqa: ANN401
    """Return every non-empty string in the secrets among these inputs."""
    if isinstance(value, dict):
        if _is_secret(value):
            return {leaf for _, leaf in iter_scalars(parse_json(value[_SECRET])) if isinstance(leaf, str) and leaf}
        return {text for inner in value.values() for text in _secrets(inner)}
    if isinstance(value, list):
        return {text for inner in value for text in _secrets(inner)}
    return set()


def _sealed(outputs: Mapping[str, Any], secrets: set[str]) -> dict[str, Any]:
    """Return the outputs with every value that contains a secret marked as secret, so that Pulumi encrypts it."""
    masked = Redactor("", secrets).masked(outputs)
    return {
        name: {SIGNATURE: SECRET, _SECRET: json.dumps(value)} if is_masked(masked[name]) else value
        for name, value in outputs.items()
    }


def _is_secret(value: Mapping[str, Any]) -> bool:
    return value.get(SIGNATURE) == SECRET and _SECRET in value


def _incomplete(physical: ExistingResource) -> dict[str, Any]:
    """Return the fields that make Pulumi update a resource that exists but is not yet complete."""
    return {} if physical.settled else {"initErrors": ["AWS rejected a call that completes this resource"]}


def _gang(row: Mapping[str, Any]) -> RecordedFleet:
    inputs, outputs = _plain(row.get("inputs") or {}), _plain(row.get("outputs") or {})
    target = (inputs.get("targetCapacitySpecification") or {}).get("totalTargetCapacity") or 0
    sets = outputs.get("fleetInstanceSets") or ()
    launched = sum(len(fleet_set.get("instanceIds") or ()) for fleet_set in sets)
    return RecordedFleet(row["urn"], str(row.get("id", "")), int(target), launched)


def _deployment(document: Document) -> dict[str, Any]:
    deployment: dict[str, Any] = document.get("deployment") or {}
    return deployment


def _all(document: Document) -> list[dict[str, Any]]:
    return list(_deployment(document).get("resources") or ())


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return the value with secrets unwrapped. Pulumi stores a secret as JSON text in a wrapper."""
    if isinstance(value, dict):
        if _is_secret(value):
            return _plain(parse_json(value[_SECRET]))
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


@dataclass(frozen=True)
class Notes:
    """The notes of a stack: two small files next to the stack's settings.

    Attributes:
        running: File with the process ID of the CLI while it runs.
        unsettled: File that an interrupted command leaves, with the time by which the cloud lists every new resource.
    """

    running: Path
    unsettled: Path

    def incomplete_until(self) -> datetime | None:
        """Return the time until which an empty search proves nothing, or None if the state is complete."""
        try:
            return decode_as(datetime, files.read_text(self.unsettled, files.SETTINGS_BYTES))
        except FileNotFoundError:
            return None
        except ValueError:
            # Truncated by a power failure: the recorded time is lost, so derive a time from the modification time.
            return datetime.fromtimestamp(self.unsettled.stat().st_mtime, UTC) + _UNREAD_DOUBT
        except OSError as err:
            raise unwritable_error(self.unsettled, err) from err

    def mark_incomplete(self, until: datetime) -> None:
        """Record that the state may lack resources, and the time by which the cloud lists all of them."""
        try:
            files.replace(self.unsettled, until.isoformat().encode())
        except OSError as err:
            raise unwritable_error(self.unsettled, err) from err

    def clear(self) -> None:
        """Record that the state is complete again."""
        with contextlib.suppress(FileNotFoundError):
            self.unsettled.unlink()


def notes_in(folder: Path) -> Notes:
    """Return the notes of the stack whose settings are in this directory."""
    return Notes(folder / "running", folder / "unsettled")


@dataclass(frozen=True)
class Searcher:
    """Searches for the resource of an interrupted create operation by the client token that the rehearsal plugin sent.

    Attributes:
        region: The stack's region, for resources that do not set their own.
    """

    handlers: Registry
    clients_for: Callable[[str], Clients]
    tokens: Tokens
    tags: Mapping[str, str]
    region: str

    def find(self, operation: Pending, clock: Clock) -> ExistingResource | None:
        """Return the resource that the operation created, or None if the cloud does not list it (yet)."""
        handler = self.handlers.handler(operation.type)
        inputs = {name: value for name, value in operation.inputs.items() if name != "region"}
        region = str(operation.inputs.get("region") or self.region)
        token = self.tokens.token(operation.urn, operation.type, region, inputs)
        return handler.find(HandlerContext(self.clients_for(region), clock, token, self.tags), inputs)


class Recovery:
    """Recovers one stack after a killed command. The caller must hold the cluster's lease."""

    def __init__(self, notes: Notes, clock: Clock, delays: Delays, on_event: OnEvent) -> None:
        self._notes = notes
        self._clock = clock
        self._delays = delays
        self._on_event = on_event

    def end_abandoned(self) -> bool:
        """Stop the CLI left by a killed command. Return True if an earlier command was killed or interrupted."""
        if was_command_killed(self._notes.running):
            stop_abandoned_cli(self._notes.running, self._clock, self._emit_waiting)
            self.mark_incomplete()
            self._notes.running.unlink(missing_ok=True)
            return True
        return self._notes.incomplete_until() is not None

    def settle(self, stack: StackPort, searcher: Searcher | None) -> None:
        """Add resources that interrupted operations created to the state, and remove every pending operation.

        Args:
            stack: The stack.
            searcher: Finds resources by client token. None for Pulumi's own AWS plugin, which sends no client token.
                The caller then finds the created resources by their tags and deletes them.
        """
        document = stack.document()
        interrupted = pending_operations(document)
        if not interrupted:
            return
        creations = [operation for operation in interrupted if operation.kind == "creating"]
        until = self.mark_incomplete(launching=any(operation.type == FLEET for operation in creations))
        made = {} if searcher is None else self._find_created(creations, searcher, until)
        stack.replace(resolve_pending_operations(document, made))

    def mark_incomplete(self, *, launching: bool = False) -> datetime:
        """Record that an operation may still take effect.

        Return the time until which an empty search proves nothing.
        """
        call_s = self._delays.launch_s if launching else self._delays.call_s
        until = self._clock.now() + timedelta(seconds=call_s + self._delays.visible_s)
        self._notes.mark_incomplete(until)
        return until

    def may_be_incomplete(self) -> bool:
        """Return True if the cloud may contain resources that the state does not list."""
        return self._notes.incomplete_until() is not None

    def done(self) -> None:
        """Record that the stack matches its program."""
        self._notes.clear()

    def wait(self) -> None:
        """Sleep until the recorded time by which the cloud lists every resource created so far."""
        until = self._notes.incomplete_until()
        if until is not None:
            left_s = (until - self._clock.now()).total_seconds()
            if left_s > 0:
                self._clock.sleep(left_s)

    def _find_created(
        self, creations: list[Pending], searcher: Searcher, until: datetime
    ) -> dict[str, ExistingResource]:
        """Search until every resource is found or `until` has passed."""
        made: dict[str, ExistingResource] = {}
        pause_s = _FIRST_PAUSE_S
        while True:
            last = self._clock.now() >= until
            for creation in creations:
                physical = None if creation.urn in made else self._find(creation, searcher)
                if physical is not None:
                    made[creation.urn] = physical
            if last or len(made) == len(creations):
                return made
            self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _find(self, creation: Pending, searcher: Searcher) -> ExistingResource | None:
        try:
            physical = searcher.find(creation, self._clock)
        except CloudGpuError as err:
            self._on_event(Event("failed", "adopt", creation.urn, creation.type, creation.name, err.message))
            raise
        if physical is not None:
            self._on_event(Event("done", "adopt", creation.urn, creation.type, creation.name, physical.id))
        return physical

    def _emit_waiting(self, pid: int) -> None:
        message = f"waiting for the Pulumi CLI of a killed command (process {pid}) to exit"
        self._on_event(Event("waiting", "read", "", "pulumi:log", "info", message))
