"""Shared base of the handlers: known properties, and changes that can be made in place."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, ClassVar, Final

from cloudgpu.aws.ec2.tagging import INTENT
from cloudgpu.aws.resources.base import Diff, HandlerContext, Physical, Properties
from cloudgpu.aws.session.errors import answered
from cloudgpu.errors import BadRequestError, CloudError, QuotaError, UnsupportedError

_OPERATIONS: Final = {
    "create": "making",
    "find": "looking for",
    "read": "reading",
    "update": "changing",
    "delete": "deleting",
}


def _answered(operation: Callable[..., Any], doing: str) -> Callable[..., Any]:
    @wraps(operation)
    def checked(self: "DescribedHandler", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        with answered(f"{doing} {self.type}"):
            return operation(self, *args, **kwargs)

    return checked


class DescribedHandler:
    """Implement `check` and `diff` with four tables. A property that is in no table is rejected."""

    type: ClassVar[str]
    accepts: ClassVar[frozenset[str]]
    """Input properties beside `tags`."""
    requires: ClassVar[frozenset[str]] = frozenset()
    defaults: ClassVar[Properties] = {}
    """What the provider fills in."""
    replaced_by: ClassVar[frozenset[str]] = frozenset()
    """Properties that AWS cannot change on an existing resource."""
    nested: ClassVar[Mapping[str, frozenset[str]]] = {}
    """Property path -> keys accepted in the mapping, or list of mappings, that stands there."""

    def __init_subclass__(cls, **given: Any) -> None:  # noqa: ANN401 - passed on
        """Wrap every operation of a handler so that malformed responses raise a `CloudError`.

        AWS, a proxy or a compatible endpoint may omit fields that botocore does not check. A `KeyError` would abort the
        engine in the middle of a deployment without a record of what the call created.
        """
        super().__init_subclass__(**given)
        for name, doing in _OPERATIONS.items():
            operation = cls.__dict__.get(name)
            if operation is not None:
                setattr(cls, name, _answered(operation, doing))

    def check(self, inputs: Properties) -> Properties:
        """Refuse what is not known and fill in the provider's defaults.

        Raises:
            UnsupportedError: A property is not implemented; the message names it.
            BadRequestError: A property is missing.
        """
        given = {key: value for key, value in inputs.items() if value is not None}
        self._refuse(given.keys() - self.accepts - {"tags"})
        for path, keys in self.nested.items():
            self._refuse(
                f"{path}.{key}" for found in _at(given, path.split(".")) for key in sorted(found.keys() - keys)
            )
        missing = sorted(self.requires - given.keys())
        if missing:
            message = f"{self.type}: {', '.join(missing)} must be given"
            raise BadRequestError(
                message, code="MissingProperty", hint="the direct engine generates no values or names"
            )
        return {**self.defaults, **given}

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare checked inputs."""
        changed = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return Diff(tuple(changed), tuple(key for key in changed if key in self.replaced_by))

    def _refuse(self, unknown: Iterable[str]) -> None:
        names = sorted(unknown)
        if names:
            message = f"{self.type}: the direct engine does not support {', '.join(names)}"
            raise UnsupportedError(message, code="UnsupportedProperty", hint="leave it out, or use the pulumi engine")


def all_tags(ctx: HandlerContext, inputs: Properties) -> dict[str, str]:
    """Return the tags for creating a resource: the cluster's, overridden by its own, and the call's token."""
    return {**ctx.tags, **(inputs.get("tags") or {}), INTENT: ctx.token}


def is_ours(ctx: HandlerContext, tags: Mapping[str, str]) -> bool:
    """Return True if the tags show that this call created the resource."""
    return bool(ctx.token) and tags.get(INTENT) == ctx.token


def tag_outputs(inputs: Properties, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return the two tag properties that every taggable resource has."""
    return {"tags": dict(inputs.get("tags") or {}), "tagsAll": dict(tags)}


def changed_tags(ctx: HandlerContext, new: Properties) -> dict[str, str]:
    """Return the tags after an update, keeping the token of the creating call."""
    return {**ctx.tags, **(new.get("tags") or {})}


def completed(settle: Callable[[], Physical], as_found: Callable[[], Physical]) -> Physical:
    """Finish what an interrupted call started.

    If AWS refuses, the resource exists all the same. It is adopted as it is, so that it can be deleted, or the next
    update completes it or reports why it cannot.
    """
    try:
        return settle()
    except (BadRequestError, QuotaError):
        return replace(as_found(), settled=False)


def existing(found: dict[str, Any] | None, what: str) -> dict[str, Any]:
    """Return a search result.

    Raises:
        CloudError: The result is None because the resource was deleted in the meantime.
    """
    if found is None:
        message = f"{what} no longer exists"
        raise CloudError(message, code="NotFound", hint="it was deleted by other means: run the same command again")
    return found


def _at(value: Any, path: list[str]) -> Iterable[Mapping[str, Any]]:  # noqa: ANN401
    """Yield the mappings at a path, descending into lists and skipping values that are not known yet."""
    if isinstance(value, list):
        for item in value:
            yield from _at(item, path)
    elif isinstance(value, Mapping):
        if not path:
            yield value
        elif path[0] in value:
            yield from _at(value[path[0]], path[1:])
