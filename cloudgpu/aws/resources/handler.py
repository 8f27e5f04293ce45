"""The interface of resource handlers, and the base classes of handlers, also of network resources without a name."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, Final, Protocol

from cloudgpu.aws.ec2.tagging import INTENT_TAG, retag, tag_specification, tags_to_dict
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors, is_gone, is_in_use
from cloudgpu.aws.session.eventual_consistency import poll, retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.errors import BadRequestError, CloudError, CloudGpuError, QuotaError, UnsupportedError

Properties = Mapping[str, Any]
"""Provider property names in camelCase, as Pulumi sends them, with plain Python values."""
_OPERATIONS: Final = {
    "create": "creating",
    "find": "looking for",
    "read": "reading",
    "update": "changing",
    "delete": "deleting",
}
_RELEASE_S = 600


@dataclass(frozen=True)
class HandlerContext:
    """Context of a handler call. `token` is the resource's deterministic client token (at most 64 ASCII characters)."""

    clients: Clients
    clock: Clock
    token: str
    tags: Mapping[str, str]
    """Tags of the cluster. The creating call merges them with the resource's own tags, which take precedence."""


@dataclass(frozen=True)
class ExistingResource:
    """An existing resource: the ID that Pulumi would show, and all output properties."""

    id: str
    outputs: Properties
    settled: bool = True
    """False if AWS rejected a call that configures an adopted resource, which then does not match its inputs yet."""


@dataclass(frozen=True)
class Diff:
    """Result of a comparison: all changed input properties, and those that force a replacement."""

    changed: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()


class Handler(Protocol):
    """Handler for one resource type. Methods raise only errors from `cloudgpu.errors`."""

    type: ClassVar[str]
    """Pulumi type token, for example `aws:ec2/securityGroup:SecurityGroup`."""

    def check(self, inputs: Properties) -> Properties:
        """Return the inputs with the provider's defaults. Raise UnsupportedError if any property is not supported."""

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare old and new inputs, both returned by `check`."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create and tag the resource in a single call, and wait until it is usable. Idempotent for the same token."""

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the resource that an interrupted `create` with this token left behind, and finish its setup.

        Return None if there is no such resource.
        """

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if AWS reports that the resource does not exist."""

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the resource in place, and return its new state."""

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the resource and wait until AWS confirms the deletion. A missing resource counts as deleted."""


def _with_answered(operation: Callable[..., Any], doing: str) -> Callable[..., Any]:
    @wraps(operation)
    def checked(self: "DescribedHandler", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        with convert_response_errors(f"{doing} {self.type}"):
            return operation(self, *args, **kwargs)

    return checked


class DescribedHandler:
    """Base class that implements `check` and `diff` from class attributes, and rejects properties not listed there."""

    type: ClassVar[str]
    accepts: ClassVar[frozenset[str]]
    """Supported input properties other than `tags`."""
    requires: ClassVar[frozenset[str]] = frozenset()
    defaults: ClassVar[Properties] = {}
    """The provider's default values."""
    replaced_by: ClassVar[frozenset[str]] = frozenset()
    """Properties that AWS cannot change on an existing resource."""
    nested: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Property path -> supported keys of the mapping, or the list of mappings, at this path."""

    def __init_subclass__(cls, **options: Any) -> None:  # noqa: ANN401 - passed on
        """Wrap every operation of a handler so that malformed responses raise a `CloudError`.

        AWS, a proxy or a compatible endpoint may omit fields that botocore does not check. A `KeyError` would abort the
        engine in the middle of a deployment without a record of what the call created.
        """
        super().__init_subclass__(**options)
        for name, doing in _OPERATIONS.items():
            operation = cls.__dict__.get(name)
            if operation is not None:
                setattr(cls, name, _with_answered(operation, doing))

    def check(self, inputs: Properties) -> Properties:
        """Reject unknown properties and fill in the provider's defaults."""
        properties = {key: value for key, value in inputs.items() if value is not None}
        self._refuse(properties.keys() - self.accepts - {"tags"})
        for path, keys in self.nested.items():
            self._refuse(
                f"{path}.{key}" for mapping in _at(properties, path.split(".")) for key in sorted(mapping.keys() - keys)
            )
        missing = sorted(self.requires - properties.keys())
        if missing:
            message = f"{self.type}: {', '.join(missing)} must be set"
            raise BadRequestError(
                message,
                code="MissingProperty",
                hint="set these properties: the direct engine does not generate values for them",
            )
        return {**self.defaults, **properties}

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare old and new inputs, both returned by `check`."""
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return Diff(tuple(changed), tuple(key for key in changed if key in self.replaced_by))

    def _refuse(self, unknown: Iterable[str]) -> None:
        names = sorted(unknown)
        if names:
            message = f"{self.type}: the direct engine does not support {', '.join(names)}"
            raise UnsupportedError(
                message, code="UnsupportedProperty", hint="omit these properties, or use the pulumi engine"
            )


def all_tags(ctx: HandlerContext, inputs: Properties) -> dict[str, str]:
    """Return a new resource's tags: the cluster's tags, overridden by the resource's own tags, and the call's token."""
    return {**ctx.tags, **(inputs.get("tags") or {}), INTENT_TAG: ctx.token}


def is_ours(ctx: HandlerContext, tags: Mapping[str, str]) -> bool:
    """Return True if the tags contain this call's token, which means that an earlier attempt created the resource."""
    return bool(ctx.token) and tags.get(INTENT_TAG) == ctx.token


def tag_outputs(inputs: Properties, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the output properties `tags` and `tagsAll`, which every taggable resource has."""
    return {"tags": dict(inputs.get("tags") or {}), "tagsAll": dict(tags)}


def changed_tags(ctx: HandlerContext, new: Properties) -> dict[str, str]:
    """Return the tags that an update sets. The tag with the creating call's token is omitted, so it stays unchanged."""
    return {**ctx.tags, **(new.get("tags") or {})}


def complete_interrupted(
    settle: Callable[[], ExistingResource], as_found: Callable[[], ExistingResource]
) -> ExistingResource:
    """Finish configuring a resource that an interrupted call created.

    If AWS rejects a configuration call, the resource still exists. Return it as not settled, so that it is recorded and
    can be deleted. The next update finishes the configuration or reports the error.
    """
    try:
        return settle()
    except (BadRequestError, QuotaError):
        return replace(as_found(), settled=False)


@contextlib.contextmanager
def deleting(what: str) -> Iterator[None]:
    """Convert the errors of a deletion. A resource that no longer exists counts as deleted."""
    try:
        with convert_errors(what):
            yield
    except CloudGpuError as err:
        if not is_gone(err):
            raise


def response_unless_gone(what: str, call: Callable[..., Any], **arguments: Any) -> dict[str, Any] | None:  # noqa: ANN401
    """Make a call and return its response, or None if AWS reports that the resource does not exist."""
    try:
        with convert_errors(what):
            response: dict[str, Any] = call(**arguments)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return response


def delete_when_unused(
    ctx: HandlerContext, delete: Callable[[], None], limit_s: float, when: Callable[[CloudGpuError], bool] = is_in_use
) -> bool:
    """Delete a resource, and retry up to `limit_s` seconds while others use it. Return False if it did not exist."""
    try:
        retry(ctx.clock, delete, when=when, total_s=limit_s)
    except CloudGpuError as err:
        if not is_gone(err):
            raise
        return False
    return True


def require_existing(description: dict[str, Any] | None, what: str) -> dict[str, Any]:
    """Return the description of a resource that must exist."""
    if description is None:
        message = f"{what} no longer exists"
        raise CloudError(
            message, code="NotFound", hint="run the same command again: the resource was deleted outside of cloudgpu"
        )
    return description


def _at(value: Any, path: list[str]) -> Iterable[Mapping[str, Any]]:  # noqa: ANN401
    """Yield the mappings at a path, descending into lists and skipping Pulumi outputs that are not known yet."""
    if isinstance(value, list):
        for item in value:
            yield from _at(item, path)
    elif isinstance(value, Mapping):
        if not path:
            yield value
        elif path[0] in value:
            yield from _at(value[path[0]], path[1:])


class NetworkPartHandler(DescribedHandler):
    """Base class for handlers of resources without a name. A tag identifies the call that created the resource."""

    kind: ClassVar[str]
    """AWS's resource type in tag specifications."""
    plural: ClassVar[str]
    """Key of the resource list in AWS's response."""
    id_key: ClassVar[str]
    describe_call: ClassVar[str] = ""
    """Client method that lists the resources; empty for `describe_<kind>s`."""
    id_filter: ClassVar[str] = ""
    """Name of the filter that selects by ID; empty for `<kind>-id`."""
    appear_s: ClassVar[float] = 60
    """Maximum number of seconds until the resource becomes usable."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the resource, wait until it is usable, then set the properties that the creating call cannot set."""
        spec = tag_specification(self.kind, all_tags(ctx, inputs))
        with convert_errors(f"creating {self.kind}"):
            physical_id = self._make(ctx, inputs, [spec])
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the resource that an interrupted `create` with this token left behind, and finish its setup.

        Return None if there is no such resource.
        """
        resource = self._described(ctx.clients, [{"Name": f"tag:{INTENT_TAG}", "Values": [ctx.token]}])
        if resource is None or not is_ours(ctx, tags_to_dict(resource.get("Tags"))):
            return None
        return complete_interrupted(
            lambda: self._settled(ctx, resource[self.id_key], inputs), lambda: self._physical(ctx, resource, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the resource does not exist."""
        resource = self._by_id(ctx.clients, physical_id)
        return self._physical(ctx, resource, {"tags": tags_to_dict(resource.get("Tags"))}) if resource else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags and the other properties that can be changed in place."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the resource once nothing depends on it."""

        def attempt() -> None:
            with convert_errors(f"deleting {self.kind} {physical_id}"):
                self._unmake(ctx.clients, physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)

    def _settled(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> ExistingResource:
        what = f"{self.kind} {physical_id} to become available"
        resource = poll(ctx.clock, lambda: self._usable(ctx.clients, physical_id), what=what, total_s=self.appear_s)
        with convert_errors(f"setting up {self.kind} {physical_id}"):
            self._set(ctx.clients.client("ec2"), resource, inputs)
        resource = require_existing(self._by_id(ctx.clients, physical_id), f"{self.kind} {physical_id}")
        return self._physical(ctx, resource, inputs)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        resource = self._by_id(clients, physical_id)
        return resource if resource and str(resource.get("State", "available")).lower() == "available" else None

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        return self._described(clients, [{"Name": self.id_filter or f"{self.kind}-id", "Values": [physical_id]}])

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first resource that matches the filters, or None.

        Callers pass IDs as filters too, because AWS returns an error for an unknown ID in an ID parameter.
        """
        describe = getattr(clients.client("ec2"), self.describe_call or f"describe_{self.kind.replace('-', '_')}s")
        with convert_errors(f"describing {self.kind}"):
            return next(iter(describe(Filters=filters)[self.plural]), None)

    def _physical(self, ctx: HandlerContext, resource: dict[str, Any], inputs: Properties) -> ExistingResource:
        physical_id, owner = resource[self.id_key], resource.get("OwnerId", "")
        outputs = {
            **{key: value for key, value in inputs.items() if key != "tags"},
            "arn": f"arn:aws:ec2:{ctx.clients.region}:{owner}:{self.kind}/{physical_id}",
            "ownerId": owner,
            **self._outputs(ctx.clients, resource),
            **tag_outputs(inputs, tags_to_dict(resource.get("Tags"))),
        }
        return ExistingResource(physical_id, outputs)

    @abstractmethod
    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        """Send the creating call and return the resource's ID."""

    def _set(self, ec2: Any, resource: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set the properties that the creating call cannot set."""

    @abstractmethod
    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Send the call that deletes the resource."""

    def _outputs(self, clients: Clients, resource: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the outputs that are specific to this resource type."""
        return {}
