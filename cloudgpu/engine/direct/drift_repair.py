"""What lets people in, held against what the program made it: found when it strayed, and put right in place."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cloudgpu.aws.resources.base import Handler, HandlerContext, Properties
from cloudgpu.engine.direct.deployment import Registry


@runtime_checkable
class Guarding(Protocol):
    """A handler of what lets people in."""

    def drift(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> tuple[str, ...]:
        """Every difference between what stands and what these inputs ask for, in words; empty where there is none."""


@dataclass(frozen=True)
class Guarded:
    """One resource as recorded."""

    type: str
    name: str
    id: str
    region: str
    token: str
    inputs: Properties


def drift(
    recorded: Iterable[Guarded], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Every difference, without a mutating call.

    Raises:
        CloudGpuError: The cloud cannot be asked.
    """
    return tuple(line for _, _, lines in _drifted(recorded, handlers, context) for line in lines)


def repair_drift(
    recorded: Iterable[Guarded], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> tuple[str, ...]:
    """Put every difference right, and say which there were. What was recorded stays true, so nothing is written down.

    Raises:
        CloudGpuError: The cloud refused, or cannot be asked.
    """
    repaired: list[str] = []
    for one, handler, lines in _drifted(recorded, handlers, context):
        handler.update(context(one.region, one.token), one.id, one.inputs, one.inputs)
        repaired += lines
    return tuple(repaired)


def _drifted(
    recorded: Iterable[Guarded], handlers: Registry, context: Callable[[str, str], HandlerContext]
) -> Iterator[tuple[Guarded, Handler, tuple[str, ...]]]:
    for one in recorded:
        handler = handlers.handler(one.type)
        if isinstance(handler, Guarding):
            lines = handler.drift(context(one.region, one.token), one.id, one.inputs)
            if lines:
                yield one, handler, lines
