"""What a stack's exported state says: resources, and operations that nobody saw the end of."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from cloudgpu.aws.resources.base import Physical
from cloudgpu.decoding import malformed_as
from cloudgpu.engine.base import ResourceState
from cloudgpu.engine.direct.drift_repair import Guarded
from cloudgpu.engine.direct.protobuf_values import SECRET, SIGNATURE, leaves
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
    """Let a function that takes an exported state apart refuse one of another shape with a `StateError`."""

    @wraps(read)
    def checked(*args: _P.args, **named: _P.kwargs) -> _T:
        with malformed_as(_unreadable):
            return read(*args, **named)

    return checked


def _unreadable(why: str) -> StateError:
    message = f"the exported state of the Pulumi stack cannot be read: {why}"
    return StateError(message, hint="`pulumi stack export` shows it; `cloudgpu down` still searches by tag without it")


@dataclass(frozen=True)
class Pending:
    """An operation that was begun and whose end is not recorded."""

    kind: str
    """`creating`, `updating`, `deleting` ..."""
    urn: str
    type: str
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name in the program."""
        return self.urn.rpartition("::")[2]


@dataclass(frozen=True)
class Gang:
    """A fleet as recorded: what it was to have, and what it has."""

    urn: str
    id: str
    wanted: int
    got: int


@_readable
def resources(document: Document) -> tuple[ResourceState, ...]:
    """The resources of the cloud that exist."""
    return tuple(
        ResourceState(one["urn"], one["type"], one["urn"].rpartition("::")[2], str(one.get("id", "")))
        for one in _all(document)
        if one.get("custom") and not one.get("external") and not one["type"].startswith("pulumi:")
    )


@_readable
def guarded(document: Document, region: str) -> list[Guarded]:
    """What lets people in, as its program asked for it."""
    return [
        Guarded(one["type"], one["urn"].rpartition("::")[2], str(one.get("id", "")), region, "", _inputs(one))
        for one in _all(document)
        if one["type"] == SECURITY_GROUP and not one.get("delete") and not one.get("external")
    ]


def _inputs(one: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the SDK and the provider add for themselves."""
    inputs: dict[str, Any] = _plain(one.get("inputs") or {})
    return {name: value for name, value in inputs.items() if not name.startswith("__") and name != "region"}


@_readable
def pending(document: Document) -> tuple[Pending, ...]:
    """What was begun and not recorded as ended."""
    return tuple(
        Pending(
            one["type"],
            one["resource"]["urn"],
            one["resource"]["type"],
            _plain(one["resource"].get("inputs") or {}),
        )
        for one in _deployment(document).get("pending_operations") or ()
    )


@_readable
def gangs(document: Document) -> tuple[Gang, ...]:
    """Every fleet."""
    return tuple(_gang(one) for one in _all(document) if one["type"] == FLEET and not one.get("delete"))


@_readable
def settled(document: Document, made: Mapping[str, Physical]) -> Document:
    """The state with these resources (by URN) in it, and with no operation pending.

    What a pending creation was to replace is on its way out from then on.
    """
    answer = copy.deepcopy(document)
    deployment = _deployment(answer)
    found = deployment.setdefault("resources", [])
    for one in deployment.get("pending_operations") or ():
        resource = one["resource"]
        physical = made.get(resource["urn"]) if one["type"] == "creating" else None
        if physical is None:
            continue
        for old in found:
            if old["urn"] == resource["urn"]:
                old["delete"] = True
        outputs = _sealed(physical.outputs, _secrets(resource.get("inputs") or {}))
        found.append({**resource, "id": physical.id, "outputs": outputs, **_incomplete(physical)})
    deployment.pop("pending_operations", None)
    return answer


def _secrets(value: Any) -> set[str]:  # noqa: ANN401
    """Every text inside the secrets of these inputs."""
    if isinstance(value, dict):
        if _is_secret(value):
            return {leaf for _, leaf in leaves(parse_json(value[_SECRET])) if isinstance(leaf, str) and leaf}
        return {text for inner in value.values() for text in _secrets(inner)}
    if isinstance(value, list):
        return {text for inner in value for text in _secrets(inner)}
    return set()


def _sealed(outputs: Mapping[str, Any], secrets: set[str]) -> dict[str, Any]:
    """Outputs in which what holds a secret is one, so that Pulumi encrypts it."""
    masked = Redactor("", secrets).masked(outputs)
    return {
        name: {SIGNATURE: SECRET, _SECRET: json.dumps(value)} if is_masked(masked[name]) else value
        for name, value in outputs.items()
    }


def _is_secret(value: Mapping[str, Any]) -> bool:
    return value.get(SIGNATURE) == SECRET and _SECRET in value


def _incomplete(physical: Physical) -> dict[str, Any]:
    """What makes Pulumi update it at once: it exists, and is not yet what was asked for."""
    return {} if physical.settled else {"initErrors": ["AWS refused to complete it when it was found again"]}


def _gang(one: Mapping[str, Any]) -> Gang:
    inputs, outputs = _plain(one.get("inputs") or {}), _plain(one.get("outputs") or {})
    wanted = (inputs.get("targetCapacitySpecification") or {}).get("totalTargetCapacity") or 0
    sets = outputs.get("fleetInstanceSets") or ()
    got = sum(len(launched.get("instanceIds") or ()) for launched in sets)
    return Gang(one["urn"], str(one.get("id", "")), int(wanted), got)


def _deployment(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = document.get("deployment") or {}
    return found


def _all(document: Document) -> list[dict[str, Any]]:
    return list(_deployment(document).get("resources") or ())


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Values without the wrapping of secrets, which stands around JSON text; whole numbers as such."""
    if isinstance(value, dict):
        if _is_secret(value):
            return _plain(parse_json(value[_SECRET]))
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
