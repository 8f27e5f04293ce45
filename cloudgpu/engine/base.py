"""The interface of both engines: run a Pulumi program for one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Operation = Literal["create", "update", "replace", "delete", "same", "read", "adopt"]
EventKind = Literal["start", "done", "failed", "waiting"]


@dataclass(frozen=True)
class Stack:
    """A cluster in one region.

    Attributes:
        name: Name of the cluster.
        region: AWS region.
        program: Directory of the Pulumi project.
        config: Program settings: `cloudgpu:<key>` without the prefix -> text.
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
    """Physical id when done, reason when failed, what the engine waits for when waiting."""
    seconds: float = 0.0


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Applied:
    """A stack after `up` or `refresh`."""

    outputs: Mapping[str, Any]
    resources: tuple["ResourceState", ...] = ()
    changes: Mapping[Operation, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceState:
    """An existing resource."""

    urn: str
    type: str
    name: str
    id: str


@dataclass(frozen=True)
class PreviewStep:
    """One step of a preview."""

    operation: Operation
    urn: str
    type: str
    name: str
    changed: tuple[str, ...] = ()


class Engine(Protocol):
    """Runs programs. Every method raises a `CloudGpuError` on failure."""

    def preview(self, stack: Stack) -> tuple[PreviewStep, ...]:
        """Return what `up` would do, without a mutating call."""

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """Describe changes made to security groups outside the program, without a mutating call."""

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Repair those changes and nothing else; return their descriptions."""

    def up(self, stack: Stack, on_event: OnEvent) -> Applied:
        """Make the stack match its program. If it raises, no operation is in progress any more."""

    def refresh(self, stack: Stack) -> Applied:
        """Read every resource again and remove from the state what no longer exists."""

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """Delete everything that the state lists or that carries the cluster's tag, and confirm the deletion."""
