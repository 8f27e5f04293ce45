"""The interface of the provisioning engines, which run a Pulumi program for one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Operation = Literal["create", "update", "replace", "delete", "same", "read", "adopt"]
EventKind = Literal["start", "done", "failed", "waiting"]


@dataclass(frozen=True)
class Stack:
    """A Pulumi stack: the resources of one cluster in one region, or of one storage resource.

    Attributes:
        name: Name of the cluster or storage resource.
        region: AWS region.
        program: Directory of the Pulumi project.
        config: Program settings; their keys omit the `cloudgpu:` prefix.
        secrets: Keys of `config` whose values must not be stored in plain text or shown.
        journal: Journal file of this stack.
    """

    name: str
    region: str
    program: Path
    config: Mapping[str, str]
    journal: Path
    secrets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Event:
    """One progress event: an operation on one resource."""

    kind: EventKind
    operation: Operation
    urn: str
    type: str
    name: str
    detail: str = ""
    """Physical ID if known (start, done), reason (failed), or what the engine is waiting for (waiting)."""
    seconds: float = 0.0


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class AppliedStack:
    """The outputs, resources and operation counts of a stack after `up` or `refresh`."""

    outputs: Mapping[str, Any]
    resources: tuple["ResourceState", ...] = ()
    changes: Mapping[Operation, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceState:
    """A resource that exists according to the engine's state."""

    urn: str
    type: str
    name: str
    id: str


@dataclass(frozen=True)
class PreviewStep:
    """An operation that `up` would perform on one resource; `changed` lists the properties that require it."""

    operation: Operation
    urn: str
    type: str
    name: str
    changed: tuple[str, ...] = ()


class Engine(Protocol):
    """An engine that runs Pulumi programs. Every method raises a `CloudGpuError` on failure."""

    def preview(self, stack: Stack) -> tuple[PreviewStep, ...]:
        """Return the steps that `up` would perform, without changing anything."""

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """Describe the security group changes made outside the program, without changing anything."""

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Revert the security group changes made outside the program; return their descriptions."""

    def up(self, stack: Stack, on_event: OnEvent) -> AppliedStack:
        """Make the stack match its program. If an error is raised, no operation is still in progress."""

    def refresh(self, stack: Stack) -> AppliedStack:
        """Re-read every resource, and drop those that no longer exist from the state."""

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """Delete every resource in the state and every resource that an interrupted operation may have created."""
