"""Read and edit the exported state of a Pulumi stack: resources and pending operations."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from cloudgpu.aws.resources.handler import ExistingResource
from cloudgpu.decoding import malformed_as
from cloudgpu.engine.base import ResourceState
from cloudgpu.engine.direct.program.protobuf_values import SECRET, SIGNATURE, iter_scalars
from cloudgpu.engine.direct.register import DriftCheckedResource
from cloudgpu.engine.pulumi_cli.stacks import Document
from cloudgpu.engine.redaction import Redactor, is_masked
from cloudgpu.errors import StateError
from cloudgpu.files import parse_json

FLEET: Final = "aws:ec2/fleet:Fleet"
SECURITY_GROUP: Final = "aws:ec2/securityGroup:SecurityGroup"
_SECRET: Final = "plaintext"  # noqa: S105  the name of a field
_P = ParamSpec("_P")
_T = TypeVar("_T")


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
