"""What the simulated AWS tells the node host about an instance to run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeSpec:
    """One simulated instance. Hardware figures come from the catalogue and are always labelled simulated."""

    instance_id: str
    instance_type: str
    region: str
    zone: str
    image_id: str
    address: str
    """Loopback address of the node, public and private at once; empty: the node host picks one."""
    user: str
    """Login name, for instance `ubuntu`."""
    authorized_keys: tuple[str, ...]
    """OpenSSH public key lines."""
    user_data: bytes
    """As given to RunInstances, decoded from base64."""
    gpu: str
    gpus: int
    gpu_memory_mib: int
    efa_interfaces: int
    spot: bool = False
    ssh_open: bool = True
    """Whether security groups and routes let callers reach port 22."""
    egress: bool = True
    """Whether they let the node reach the internet."""
    role: str = ""
    """Name of the IAM role of the instance profile."""
    mountable: tuple[tuple[str, str], ...] = ()
    """What its groups, its zone and its attachments let it mount: source, and the name of the folder for it."""
