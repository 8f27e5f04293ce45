"""A node's specification, which the simulated AWS sends to the node host."""

from dataclasses import dataclass

from cloudgpu.catalog.hardware import NVSWITCH_GPUS


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
