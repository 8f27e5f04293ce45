"""Detect and repair changes made to security groups outside the program."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cloudgpu.aws.resources.base import Handler, HandlerContext, Properties
from cloudgpu.engine.direct.deployment import Registry


@runtime_checkable
class DriftHandler(Protocol):
    """A handler that can detect drift."""

    def drift(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> tuple[str, ...]:
        """Return one line for each difference between the actual resource and these inputs."""


@dataclass(frozen=True)
class DriftCheckedResource:
    """A recorded resource that is checked for drift."""

    type: str
    name: str
    id: str
    region: str
    token: str
    inputs: Properties


def find_drift(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Return one line for each difference between a security group and its recorded state. Change nothing."""
    return tuple(line for _, _, lines in _drifted(recorded, handlers, context) for line in lines)


def repair_drift(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Revert every difference from the recorded state, which does not change. Return one line for each difference."""
    repaired: list[str] = []
    for resource, handler, lines in _drifted(recorded, handlers, context):
        ctx = context(resource.region, resource.token)
        handler.update(ctx, resource.id, resource.inputs, resource.inputs)
        repaired += lines
    return tuple(repaired)


def _drifted(
    recorded: Iterable[DriftCheckedResource], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> Iterator[tuple[DriftCheckedResource, Handler, tuple[str, ...]]]:
    for resource in recorded:
        handler = handlers.handler(resource.type)
        if isinstance(handler, DriftHandler):
            lines = handler.drift(context(resource.region, resource.token), resource.id, resource.inputs)
            if lines:
                yield resource, handler, lines
