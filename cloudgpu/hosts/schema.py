"""Schema of the inventory file."""

import re
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from cloudgpu.bounds import MAX_PORT
from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import SizeGib, Usd

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
    """Port of its SSH server; 22 when left out."""
    user: User | None = None
    """Login name; your own when left out."""
    jump: str | None = None
    """Jump host before it: the name of another host of this file, or `user@host[:port]`."""
    key: str | None = None
    """Private key without a passphrase; the setting `ssh_key` when left out."""
    gpus: str | None = None
    """Model and count, for example `V100:8`, or `V100-32GB:8`."""
    memory: SizeGib | None = None
    """Main memory."""
    network_interface: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.:-]{1,15}$")
    """Network interface that its private address is on, for example `ib0`."""
    rate_usd_per_hour: Usd | None = None
    """What an hour of the whole host counts for; unknown when left out."""
    pool: Name | None = None
    """Hosts that belong together; a gang never mixes kinds of hosts."""
    keep_cache: bool | None = None
    """Keep Python environments and work directories when the last cluster on it ends."""

    @field_validator("gpus")
    @classmethod
    def _are_gpus(cls, value: str | None) -> str | None:
        if value is not None and _GPUS.fullmatch(value) is None:
            message = f'expected a GPU model and count, for example V100:8, got "{value}"'
            raise ValueError(message)
        return value


class HostSection(Shared):
    """The fields of one host."""

    name: Name
    """What it is called in plans and messages."""
    address: Address
    """Name or address of its SSH server."""
    host_key: tuple[Fingerprint, ...] | Fingerprint | None = None
    """Fingerprint of its host key, or several; `cloudgpu hosts scan` writes it. Else your known_hosts must know it."""
    private_address: Address | None = None
    """Where other hosts reach it; its address when left out."""
    cores: int | None = Field(default=None, ge=1, le=8192, strict=True)
    """CPU cores."""
    driver: str | None = Field(default=None, pattern=r"^[0-9]{3}(\.[0-9]+)*$")
    """Version of NVIDIA's driver on it."""


class FileSection(Section):
    """The whole file."""

    defaults: Shared = Shared()
    """What holds for every host that does not say otherwise."""
    hosts: tuple[HostSection, ...]
    """The hosts."""


def jump_is_address(text: str) -> bool:
    """Return True if a jump host is given as `user@host[:port]`."""
    found = _JUMP.fullmatch(text)
    return found is not None and (not found["port"] or int(found["port"]) <= MAX_PORT)


def split_gpus(text: str) -> tuple[str, int | None, int]:
    """Return model, memory of each GPU in GB (None if omitted) and count.

    Raises:
        ValueError: The text is not a GPU spec.
    """
    found = _GPUS.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found["model"], int(found["size"]) if found["size"] else None, int(found["count"])
