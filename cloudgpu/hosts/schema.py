"""Schema of the inventory file."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from cloudgpu.bounds import MAX_PORT
from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.units import MemoryGib, Usd

HOST_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_GPUS = re.compile(r"(?P<model>[A-Za-z0-9][A-Za-z0-9 .-]*?)(?:-(?P<size>[0-9]{1,4})Gi?B)?:(?P<count>[0-9]{1,2})")
_JUMP = re.compile(r"[a-z_][a-z0-9_-]{0,31}@([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::(?P<port>[1-9][0-9]{0,4}))?")
FINGERPRINT = r"^SHA256:[A-Za-z0-9+/]{43}=?$"
_ADDRESS = r"^[A-Za-z0-9_.:%-]{1,253}$"

Name = Annotated[str, StringConstraints(pattern=HOST_NAME)]
Address = Annotated[str, StringConstraints(pattern=_ADDRESS)]
Fingerprint = Annotated[str, StringConstraints(pattern=FINGERPRINT)]
User = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$")]


class Shared(Section):
    """Fields that `defaults` may set for all hosts."""

    port: int | None = Field(default=None, ge=1, le=65535, strict=True)
    """Port of the host's SSH server. Default: 22."""
    user: User | None = None
    """Login name. Default: your user name on this machine."""
    jump: str | None = None
    """Jump host: the name of another host in this file, or `user@host[:port]`."""
    key: str | None = None
    """Private key without a passphrase. Default: the setting `ssh_key`."""
    gpus: str | None = None
    """GPU model and count, for example `V100:8`, or `V100-32GB:8` if the model has several memory sizes."""
    memory: MemoryGib | None = None
    """Main memory of the host, for example `256GiB`."""
    network_interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:-]{1,15}$")
    """Network interface that has the private address, for example `ib0`."""
    rate_usd_per_hour: Usd | None = None
    """Hourly price of the whole host in USD; unknown if omitted."""
    pool: Name | None = None
    """Name of the host's pool. A cluster never spans pools."""
    keep_cache: bool | None = None
    """Whether to keep Python environments on the host after your last cluster there is deleted, and downloaded datasets
    after their cluster is deleted. Files in the cluster's own directory are always deleted."""

    @field_validator("gpus")
    @classmethod
    def _are_gpus(cls, value: str | None) -> str | None:
        if value is not None and _GPUS.fullmatch(value) is None:
            message = f'expected a GPU model and count, for example V100:8, got "{value}"'
            raise ValueError(message)
        return value


class HostSection(Shared):
    """A host's entry in the inventory."""

    name: Name
    """Name of the host in plans and messages."""
    address: Address
    """Host name or IP address of the SSH server."""
    host_key: tuple[Fingerprint, ...] | Fingerprint | None = None
    """Host key fingerprints, as written by `cloudgpu hosts scan`. If omitted, the key must be in your known_hosts."""
    private_address: Address | None = None
    """Address at which other hosts reach this host. Default: `address`."""
    cores: int | None = Field(default=None, ge=1, le=8192, strict=True)
    """Number of CPU cores."""
    driver: str | None = Field(default=None, pattern=r"^[0-9]{3}(\.[0-9]+)*$")
    """Version of the host's NVIDIA driver."""


class FileSection(Section):
    """The top-level fields of an inventory file."""

    defaults: Shared = Shared()
    """Default values for all hosts."""
    hosts: tuple[HostSection, ...]
    """Hosts in the inventory; at least one is required."""


def jump_is_address(text: str) -> bool:
    """Return True if a jump host is written as `user@host[:port]`."""
    match = _JUMP.fullmatch(text)
    return match is not None and (not match["port"] or int(match["port"]) <= MAX_PORT)


def split_gpus(text: str) -> tuple[str, int | None, int]:
    """Return the GPU model, the memory of each GPU in GB (None if omitted) and the number of GPUs."""
    match = _GPUS.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match["model"], int(match["size"]) if match["size"] else None, int(match["count"])
