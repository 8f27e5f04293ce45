"""What was found out about the things that a recipe names: its datasets, its work directory, keys and roles. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Presence = Literal["there", "missing", "unknown"]
"""`unknown`: it could not be looked at, for instance since AWS denies it."""


@dataclass(frozen=True)
class DatasetSeen:
    """What lies where a dataset is said to be.

    Attributes:
        why: Why it is missing or unknown, in words; empty otherwise.
        size_bytes: None where it is unknown.
        whole: False where `size_bytes` is only the least, since there is more than anybody would list.
        region: Region of its bucket; empty for files of the caller's own, or where it is unknown.
    """

    presence: Presence
    why: str = ""
    size_bytes: int | None = None
    whole: bool = True
    region: str = ""


NamedKind = Literal["key pair", "role", "VPC", "subnet", "security group"]
"""What of an account settings name."""


@dataclass(frozen=True)
class NamedThing:
    """Something of the account that the settings or the recipe name."""

    kind: NamedKind
    name: str
    region: str
    """Empty for what belongs to no region."""
    presence: Presence
    why: str = ""
    """Why it is missing or unknown."""
    setting: str = ""
    """The setting that names it."""


@dataclass(frozen=True)
class ImageSeen:
    """What its registry says of a container image.

    Attributes:
        image: The image that was asked for, as the recipe writes it.
        presence: `refused`: the registry gives it to nobody with this login, or without one.
        why: Why it is missing, refused or unknown, in words; empty otherwise. It holds no secret.
        platforms: What it is made for, for instance `linux/amd64`; empty where the registry does not tell.
        packed_bytes: Size of its layers as they are pulled for x86_64; None where it is unknown.
        on_loopback: Its registry's address is whatever machine asks: each node asks another one.
    """

    image: str
    presence: Presence | Literal["refused"]
    why: str = ""
    platforms: tuple[str, ...] = ()
    packed_bytes: int | None = None
    on_loopback: bool = False


@dataclass(frozen=True)
class Survey:
    """All of it; an empty one means that nobody looked.

    Attributes:
        datasets: Name -> what was seen; absent = not looked at.
        workdir_bytes: What would be sent to every node; None = not looked at, or none is sent.
        enabled_regions: The regions that the account may use; None = not asked, or unknown.
        regions_unknown: Why `enabled_regions` could not be read; empty otherwise.
        named: Keys, roles and the like.
        image: What the registry says of the recipe's container; None = not asked.
        set_variables: Those of the recipe's secrets that the caller's environment holds; None = not looked at.
    """

    datasets: Mapping[str, DatasetSeen] = field(default_factory=dict)
    workdir_bytes: int | None = None
    enabled_regions: frozenset[str] | None = None
    regions_unknown: str = ""
    named: tuple[NamedThing, ...] = ()
    set_variables: frozenset[str] | None = None
    image: ImageSeen | None = None

    def of_image(self, image: str) -> ImageSeen | None:
        """What is known of this image; None where another one was asked for, or none."""
        return self.image if self.image is not None and self.image.image == image else None


NO_SURVEY = Survey()
