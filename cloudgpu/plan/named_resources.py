"""Results of checking the resources that a recipe and the settings name: datasets, images, keys, roles and networks."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final, Literal

from cloudgpu.recipe.problem import FieldPath

Presence = Literal["there", "missing", "unknown"]
"""`unknown` means that the check failed, for example because AWS denied access."""


@dataclass(frozen=True)
class DatasetSeen:
    """The result of checking a dataset's source.

    Attributes:
        presence: `archived` means that S3 objects must be restored before they can be read.
        why: Reason why the dataset is missing, archived or could not be checked; empty otherwise.
        size_bytes: Size; None if unknown.
        whole: Whether `size_bytes` is exact. If there were too many files to list, it is a lower bound.
        region: Region of the S3 bucket; empty for other sources or if unknown.
    """

    presence: Presence | Literal["archived"]
    why: str = ""
    size_bytes: int | None = None
    whole: bool = True
    region: str = ""


SPOT_ROLE = "AWSServiceRoleForEC2Spot"
"""Service-linked role without which an account cannot launch spot instances."""
NamedKind = Literal["key pair", "role", "permissions boundary", "instance profile", "VPC", "subnet", "security group"]
"""Kinds of resources in the account that settings or recipes name."""


@dataclass(frozen=True)
class NamedResource:
    """A resource in the account that the settings or the recipe name."""

    kind: NamedKind
    name: str
    region: str
    """Region of the resource; empty for global resources."""
    presence: Presence
    why: str = ""
    """Reason why the resource is missing or could not be checked; empty otherwise."""
    setting: str = ""
    """Setting that names the resource; empty if the recipe names it."""


@dataclass(frozen=True)
class ProfileSeen:
    """An existing instance profile, and whether the caller may launch nodes with it.

    Attributes:
        role: Name of the profile's role; empty if the profile has none or cannot be read.
        may_pass: Whether the caller may pass the role to EC2; None if unknown.
        why: How `may_pass` was determined, or why it is unknown.
        node_lacks: Actions that the role does not allow the nodes; None if unknown.
    """

    role: str
    may_pass: bool | None
    why: str
    node_lacks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ImageSeen:
    """A registry's response about a container image.

    Attributes:
        image: The image as written in the recipe.
        presence: `refused` means that the registry denied access, with the recipe's login or anonymously.
        why: Reason why the image is missing, refused or unknown; empty otherwise. Contains no secret.
        platforms: Platforms supported by the image, such as `linux/amd64`; empty if the registry does not report them.
        packed_bytes: Compressed size of the x86_64 layers; None if unknown.
        on_loopback: Whether the registry's address is a loopback address, which on a node refers to the node itself.
    """

    image: str
    presence: Presence | Literal["refused"]
    why: str = ""
    platforms: tuple[str, ...] = ()
    packed_bytes: int | None = None
    on_loopback: bool = False


@dataclass(frozen=True)
class MachineImageSeen:
    """A machine image, or the SSM parameter of one, as AWS describes it in one region.

    Attributes:
        why: Reason why the image is missing or could not be read; empty otherwise.
        root_gib: Least size of the root disk, which is the size of its snapshot; 0 if unknown.
        architecture: `x86_64`, `arm64` or another one; empty if unknown.
        unfit: Why no GPU instance can start from the image, for example its state; empty if one can.
        deprecated_on: Date from which AWS lists the image only by its ID; None if there is none.
        product_codes: AWS Marketplace products of the image, each of which needs a subscription.
    """

    presence: Presence
    why: str = ""
    root_gib: int = 0
    architecture: str = ""
    unfit: str = ""
    deprecated_on: date | None = None
    product_codes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileIssue:
    """A local file that the recipe names and the nodes would not have.

    Attributes:
        path: Field that names the file.
        certain: Whether the run must fail. False if an earlier command of the run may create the file.
    """

    path: FieldPath
    message: str
    fix: str = ""
    certain: bool = True


@dataclass(frozen=True)
class Upload:
    """Files that a run uploads from this machine to every node.

    Attributes:
        what: `work directory`, or `dataset` with its name.
        path: Path as written in the recipe.
        secret_files: Files that usually hold secrets.
        secret_lines: Lines of a `.cloudgpuignore` that leave out these files.
        skipped: Files that cannot be sent, each with the reason.
    """

    what: str
    path: str
    files: int
    size_bytes: int
    secret_files: tuple[str, ...] = ()
    secret_lines: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {"what": self.what, "path": self.path, "files": self.files, "bytes": self.size_bytes}


_LOOKS_LIKE_TEXT: Final = re.compile(r"[+-]?0[0-9_].*|[^e]*_[^e]*|0[xob].*|[^e]*\.[0-9]*0", re.IGNORECASE)
"""Numbers with leading zeros, trailing zeros or underscores, which may be versions, dates, modes or names."""


@dataclass(frozen=True)
class ChangedParam:
    """A parameter that YAML reads as a number or boolean, and that is therefore passed differently from its text."""

    name: str
    written: str
    passed: str

    @property
    def text(self) -> str:
        """The message, with the value in quotes as the way to keep it."""
        kept = json.dumps(self.written)
        return f"YAML reads {self.written} as {self.passed}; to pass it as it is written, write {kept} in quotes"

    @property
    def looks_like_text(self) -> bool:
        """True if the text may be a version or a name, such as `3.10`; False for a number such as `1e3`."""
        return bool(_LOOKS_LIKE_TEXT.fullmatch(self.written))


@dataclass(frozen=True)
class Lookups:
    """The results of all checks of named resources. The default value means that nothing was checked.

    Attributes:
        datasets: Name -> result; datasets that were not checked are absent.
        workdir_bytes: Size of the work directory; None if it was not checked or is not uploaded.
        enabled_regions: Regions that the account has enabled; None if they were not queried or are unknown.
        regions_unknown: Reason why `enabled_regions` could not be read; empty otherwise.
        service_roles: Names of the account's service-linked roles; None if they were not queried or are unknown.
        service_roles_unknown: Reason why `service_roles` could not be read; empty otherwise.
        named: Key pairs, roles and network resources.
        image: The registry's response about the recipe's container image; None if it was not queried.
        files: Local files that the recipe names and the nodes would not have.
        uploads: What a run uploads from this machine.
        changed_params: Parameters that YAML changes.
        profile: The instance profile that the settings name; None if there is none, or it was not found.
        denied_role_actions: Calls that make the cluster's roles and that AWS would deny; empty if none, or if unknown.
        tags_problem: Why AWS would reject the tags of the settings and the recipe together; empty if it would not.
        region_origin: Source of the region for a recipe that names none; empty for the default, None if not known.
        set_variables: Secrets of the recipe that are set in the caller's environment; None if not checked.
    """

    datasets: Mapping[str, DatasetSeen] = field(default_factory=dict)
    workdir_bytes: int | None = None
    enabled_regions: frozenset[str] | None = None
    regions_unknown: str = ""
    service_roles: frozenset[str] | None = None
    service_roles_unknown: str = ""
    named: tuple[NamedResource, ...] = ()
    profile: ProfileSeen | None = None
    denied_role_actions: tuple[str, ...] = ()
    tags_problem: str = ""
    region_origin: str | None = None
    set_variables: frozenset[str] | None = None
    image: ImageSeen | None = None
    files: tuple[FileIssue, ...] = ()
    changed_params: tuple[ChangedParam, ...] = ()
    uploads: tuple[Upload, ...] = ()

    def of_image(self, image: str) -> ImageSeen | None:
        """Return the registry's response about this image; None if the registry was not queried."""
        return self.image if self.image is not None and self.image.image == image else None


NO_LOOKUPS = Lookups()
