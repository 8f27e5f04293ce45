"""The interface between the direct engine and its resource handlers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock

Properties = Mapping[str, Any]
"""Provider property names in camelCase, as Pulumi sends them over the wire, already plain Python values."""


@dataclass(frozen=True)
class HandlerContext:
    """Context of a handler. `token` is the resource's deterministic client token (at most 64 ASCII characters)."""

    clients: Clients
    clock: Clock
    token: str
    tags: Mapping[str, str]
    """The cluster's tags; merged below the resource's own in the call that creates it."""


@dataclass(frozen=True)
class Physical:
    """An existing resource: the ID that Pulumi would show, and all output properties."""

    id: str
    outputs: Properties
    settled: bool = True
    """False for an adopted one that AWS refuses to complete: it exists, and is not yet what was asked for."""


@dataclass(frozen=True)
class Diff:
    """Changed input properties, and those among them that force a replacement."""

    changed: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()


class Handler(Protocol):
    """Handler of one resource type. Methods raise only errors from `cloudgpu.errors`."""

    type: ClassVar[str]
    """Pulumi type token, for example `aws:ec2/securityGroup:SecurityGroup`."""

    def check(self, inputs: Properties) -> Properties:
        """Refuse unsupported properties (UnsupportedError names them) and fill the provider's defaults."""

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare checked inputs."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the resource, tagged by the creating call, and wait until it is usable. Idempotent for a token."""

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Adopt what a killed `create` with this token or these tags has made, or None."""

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state, or None if AWS reports that the resource does not exist."""

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change it in place."""

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """End it and return when AWS confirms the end; already gone is success."""
