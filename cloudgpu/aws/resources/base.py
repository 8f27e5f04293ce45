"""The interface between the direct engine and its resource handlers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock

Properties = Mapping[str, Any]
"""Provider property names in camelCase, as Pulumi sends them, with plain Python values."""


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
