"""What travels between the node host and its callers, and how it is written as JSON."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from cloudgpu.decoding import decoded
from cloudgpu.rehearsal.node_spec import NodeSpec

PowerState = Literal["running", "off"]
Isolation = Literal["auto", "cage", "plain"]
"""`cage`: own namespaces and root. `plain`: stand-ins on PATH only. `auto`: a cage where the machine permits one."""


@dataclass(frozen=True)
class StartedNode:
    """Where a node's SSH server listens, and the fingerprint of its host key (`SHA256:...`)."""

    address: str
    port: int
    host_key: str


@dataclass(frozen=True)
class NodeReport:
    """One node as the host knows it. `reason` says why it is off."""

    instance_id: str
    state: PowerState
    address: str
    port: int
    user: str
    host_key: str
    reason: str = ""
    befallen: tuple[str, ...] = ()
    """What fault scripts have done to it."""


@dataclass(frozen=True)
class PoweredOff:
    """A node ended by itself: its timer, its own command, or the death of its init."""

    instance_id: str
    reason: str


@dataclass(frozen=True)
class RoleCredentials:
    """The keys that the metadata service hands to every node that has a role."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime


@dataclass(frozen=True)
class Opened:
    """What is open to a node. `mountable`: source of a mount, and the folder that stands for it."""

    ssh: bool
    egress: bool
    mountable: tuple[tuple[str, str], ...] = ()


def pairs(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Pairs of text as JSON carries them."""
    return tuple((str(first), str(second)) for first, second in rows)


def spec_to_json(spec: NodeSpec) -> dict[str, Any]:
    """A spec as plain JSON values; user data in base64."""
    return asdict(spec) | {
        "authorized_keys": list(spec.authorized_keys),
        "user_data": base64.b64encode(spec.user_data).decode(),
    }


def spec_from_json(values: dict[str, Any]) -> NodeSpec:
    """The inverse of `spec_to_json`; keys of a newer version are ignored.

    Raises:
        ValueError: A required value is missing, or one is of another kind; the user data is base64.
    """
    return decoded(NodeSpec, values)
