"""What is known of the resources that a recipe and the settings name: datasets, work directory, keys and roles."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Presence = Literal["there", "missing", "unknown"]
"""`unknown`: it could not be checked, for example because AWS denied access."""


@dataclass(frozen=True)
class DatasetSeen:
    """The result of checking a dataset's source.

    Attributes:
        why: Why it is missing or unknown; empty otherwise.
        size_bytes: Size; None if unknown.
        whole: False if `size_bytes` is a lower bound, because there were too many files to list.
        region: Region of the bucket; empty for local files or if unknown.
    """

    presence: Presence
    why: str = ""
    size_bytes: int | None = None
    whole: bool = True
    region: str = ""


NamedKind = Literal["key pair", "role", "VPC", "subnet", "security group"]
"""Kinds of account resources that settings or recipes name."""


@dataclass(frozen=True)
class NamedThing:
    """A resource of the account that the settings or the recipe name."""

    kind: NamedKind
    name: str
    region: str
    """Empty for global resources."""
    presence: Presence
    why: str = ""
    """Why it is missing or unknown."""
    setting: str = ""
    """The setting that names it; empty if the recipe does."""


@dataclass(frozen=True)
class ImageSeen:
    """The registry's response about a container image.

    Attributes:
        image: The image as written in the recipe.
        presence: `refused`: the registry denies access with this login, or without one.
        why: Why it is missing, refused or unknown; empty otherwise. Contains no secret.
        platforms: Platforms that it is built for, for example `linux/amd64`; empty if the registry does not say.
        packed_bytes: Compressed size of its x86_64 layers; None if unknown.
        on_loopback: The registry's address is a loopback address, which is a different registry on each node.
    """

    image: str
    presence: Presence | Literal["refused"]
    why: str = ""
    platforms: tuple[str, ...] = ()
    packed_bytes: int | None = None
    on_loopback: bool = False


@dataclass(frozen=True)
class Survey:
    """All results together. An empty survey means that nothing was checked.

    Attributes:
        datasets: Name -> result; absent = not checked.
        workdir_bytes: Size of the work directory; None = not checked, or none is uploaded.
        enabled_regions: Regions that the account has enabled; None = not queried, or unknown.
        regions_unknown: Why `enabled_regions` could not be read; empty otherwise.
        named: Key pairs, roles and network resources.
        image: The registry's response about the recipe's container; None = not queried.
        set_variables: Secrets of the recipe that are set in the caller's environment; None = not checked.
    """

    datasets: Mapping[str, DatasetSeen] = field(default_factory=dict)
    workdir_bytes: int | None = None
    enabled_regions: frozenset[str] | None = None
    regions_unknown: str = ""
    named: tuple[NamedThing, ...] = ()
    set_variables: frozenset[str] | None = None
    image: ImageSeen | None = None

    def of_image(self, image: str) -> ImageSeen | None:
        """Return the registry's response about this image; None if it was not queried."""
        return self.image if self.image is not None and self.image.image == image else None


NO_SURVEY = Survey()
