"""Values exchanged between the node host, its clients and the simulated AWS, and their JSON form."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

from cloudgpu.catalog.hardware import NVSWITCH_GPUS
from cloudgpu.decoding import decode_as

PowerState = Literal["running", "off"]
Isolation = Literal["auto", "cage", "plain"]
"""`cage`: namespaces with a separate root. `plain`: ordinary processes, with simulated commands first on PATH.
`auto`: `cage` if the machine permits it, else `plain`."""


@dataclass(frozen=True)
class NodeSpec:
    """The specification of a simulated instance. The node labels all GPU names as simulated."""

    instance_id: str
    instance_type: str
    region: str
    zone: str
    image_id: str
    address: str
    """Loopback address, used as both the public and the private address. If empty, the node host chooses an address."""
    user: str
    """Login name, such as `ubuntu`."""
    authorized_keys: tuple[str, ...]
    """OpenSSH public key lines."""
    user_data: bytes
    """User data of RunInstances, decoded from base64."""
    gpu: str
    gpus: int
    gpu_memory_mib: int
    efa_interfaces: int
    spot: bool = False
    ssh_open: bool = True
    """Whether security groups and routes allow SSH from outside."""
    egress: bool = True
    """Whether security groups and routes allow access to the internet."""
    role: str = ""
    """Name of the IAM role in the instance profile."""
    mountable: tuple[tuple[str, str], ...] = ()
    """Storage that the node may mount, based on security groups, zone and attachments.

    Each pair consists of a mount source and the name of the directory that backs the source.
    """

    @property
    def has_nvswitch(self) -> bool:
        """Whether NVSwitch connects the GPUs, so that CUDA needs Fabric Manager."""
        return self.gpus > 1 and self.gpu in NVSWITCH_GPUS


@dataclass(frozen=True)
class StartedNode:
    """A started node: the address and port of its SSH server, and its host key's fingerprint (`SHA256:...`)."""

    address: str
    port: int
    host_key: str


@dataclass(frozen=True)
class NodeReport:
    """The state of a node. `reason` explains why the node is off, and is empty while the node is running."""

    instance_id: str
    state: PowerState
    address: str
    port: int
    user: str
    host_key: str
    reason: str = ""
    befallen: tuple[str, ...] = ()
    """Kinds of the faults injected into the node. The field name is kept because older node hosts send it."""


@dataclass(frozen=True)
class PoweredOff:
    """The event that a node powered off because of a timer, a command, a spot interruption or the exit of its init."""

    instance_id: str
    reason: str


@dataclass(frozen=True)
class RoleCredentials:
    """The credentials that the metadata service returns to every node with a role."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime


@dataclass(frozen=True)
class Opened:
    """Network and storage access of a node. `mountable` pairs each mount source with its backing directory's name."""

    ssh: bool
    egress: bool
    mountable: tuple[tuple[str, str], ...] = ()


def string_pairs(rows: Iterable[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    """Convert JSON rows to pairs of strings."""
    return tuple((str(first), str(second)) for first, second in rows)


def credentials_to_json(credentials: RoleCredentials) -> dict[str, str]:
    """Return credentials as JSON values."""
    return asdict(credentials) | {"expires_at": credentials.expires_at.isoformat()}


def spec_to_json(spec: NodeSpec) -> dict[str, Any]:
    """Return a spec as JSON values, with user data in base64."""
    return asdict(spec) | {
        "authorized_keys": list(spec.authorized_keys),
        "user_data": base64.b64encode(spec.user_data).decode(),
    }


def spec_from_json(values: dict[str, Any]) -> NodeSpec:
    """Parse the result of `spec_to_json`. Unknown keys are ignored."""
    return decode_as(NodeSpec, values)
