"""What the direct engine asks of a resource handler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock

Properties = Mapping[str, Any]
"""Provider property names in camelCase, as Pulumi sends them over the wire, already plain Python values."""


@dataclass(frozen=True)
class HandlerContext:
    """What a handler works with. `token` is this resource's deterministic client token (<= 64 ASCII characters)."""

    clients: Clients
    clock: Clock
    token: str
    tags: Mapping[str, str]
    """The cluster's tags; merged below the resource's own in the call that creates it."""


@dataclass(frozen=True)
class Physical:
    """A resource as it exists: the id Pulumi would show and every output property."""

    id: str
    outputs: Properties
    settled: bool = True
    """False for an adopted one that AWS refuses to complete: it exists, and is not yet what was asked for."""


@dataclass(frozen=True)
class Diff:
    """Which input properties changed, and which of those force a replacement."""

    changed: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()


class Handler(Protocol):
    """One resource type. Every method raises only errors of `cloudgpu.errors`."""

    type: ClassVar[str]
    """Pulumi type token, for instance `aws:ec2/securityGroup:SecurityGroup`."""

    def check(self, inputs: Properties) -> Properties:
        """Refuse unsupported properties (UnsupportedError names them) and fill the provider's defaults."""

    def diff(self, old: Properties, new: Properties) -> Diff:
        """Compare checked inputs."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Make it, tagged in the creating call, and wait until it is usable. Sending the same token again is safe."""

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Adopt what a killed `create` with this token or these tags has made, or None."""

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Its present state, or None when AWS says it does not exist."""

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change it in place."""

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """End it and return when AWS confirms the end; already gone is success."""
