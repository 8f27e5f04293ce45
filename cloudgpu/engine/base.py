"""The seam that both engines implement: carry a Pulumi program out for one stack."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Operation = Literal["create", "update", "replace", "delete", "same", "read", "adopt"]
EventKind = Literal["start", "done", "failed", "waiting"]


@dataclass(frozen=True)
class Stack:
    """One cluster in one region.

    Attributes:
        name: The cluster's name.
        region: AWS region.
        program: Directory of the Pulumi project.
        config: Program settings: `cloudgpu:<key>` without the prefix -> text.
        secrets: The keys of `config` whose values must not be stored in the clear or shown.
        journal: The journal file of this stack.
    """

    name: str
    region: str
    program: Path
    config: Mapping[str, str]
    journal: Path
    secrets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Event:
    """One line of progress: an operation on one resource."""

    kind: EventKind
    operation: Operation
    urn: str
    type: str
    name: str
    detail: str = ""
    """Physical id when done, reason when failed, what is awaited when waiting."""
    seconds: float = 0.0


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class Applied:
    """A stack as it stands after `up` or `refresh`."""

    outputs: Mapping[str, Any]
    resources: tuple["ResourceState", ...] = ()
    changes: Mapping[Operation, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResourceState:
    """One resource that exists."""

    urn: str
    type: str
    name: str
    id: str


@dataclass(frozen=True)
class Step:
    """One step of a preview."""

    operation: Operation
    urn: str
    type: str
    name: str
    changed: tuple[str, ...] = ()


class Engine(Protocol):
    """Returns on success, raises a `CloudGpuError` on failure; never a boolean."""

    def preview(self, stack: Stack) -> tuple[Step, ...]:
        """What `up` would do, without a mutating call."""

    def drift(self, stack: Stack) -> tuple[str, ...]:
        """How what lets people in differs from what the program made it, in words; no mutating call."""

    def repair_drift(self, stack: Stack) -> tuple[str, ...]:
        """Put those differences right, and nothing else; says which there were."""

    def up(self, stack: Stack, on_event: OnEvent) -> Applied:
        """Make the stack match its program. On failure nothing is in flight any more when it raises."""

    def refresh(self, stack: Stack) -> Applied:
        """Read every resource again; what is gone leaves the state."""

    def destroy(self, stack: Stack, on_event: OnEvent) -> None:
        """End everything that the journal knows or that carries the cluster's tag; returns when it is confirmed."""
