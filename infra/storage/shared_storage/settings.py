"""Parse and validate the program's settings, and return the tags of its resources.

An error message contains the key of the invalid setting.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pulumi

Kind = Literal["efs", "lustre", "ebs", "s3"]
Deployment = Literal["scratch_2", "persistent_2"]

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?")
_ZONE = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d+(?:[a-z]|-[a-z]+-\d+[a-z])")
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^\s*?]*)?")


_KINDS: dict[str, Kind] = {"efs": "efs", "lustre": "lustre", "ebs": "ebs", "s3": "s3"}
_DEPLOYMENTS: dict[str, Deployment] = {"scratch_2": "scratch_2", "persistent_2": "persistent_2"}
_ZONAL = ("lustre", "ebs")
_SMALLEST_LUSTRE_GIB = 1200
_LUSTRE_STEP_GIB = 2400


@dataclass(frozen=True)
class StorageArgs:
    """Settings of the storage.

    Attributes:
        keep: Whether the data is retained until the user deletes the storage by name.
        protect: Whether Pulumi refuses to delete the resource that contains the data.
        zone: Zone of a volume or a Lustre file system; empty for other kinds.
        size_gib: Size; 0 for storage that grows automatically, or for a volume that has the size of its snapshot.
        linked: S3 location (`s3://bucket/prefix`) linked to the root directory of a Lustre file system; empty for none.
        subnet_ids: Subnets from which the storage can be mounted; empty for one subnet in every zone of the VPC.
        made_for: Cluster that the storage was created for and is deleted with; empty for named storage.
        tags: The user's own tags, for every resource.
        client_group_ids: Existing security groups whose members may also mount the storage.
    """

    name: str
    owner: str
    team: str
    token: str
    kind: Kind
    keep: bool
    protect: bool
    zone: str = ""
    size_gib: int = 0
    deployment: Deployment = "scratch_2"
    linked: str = ""
    snapshot_id: str = ""
    vpc_id: str = ""
    subnet_ids: tuple[str, ...] = ()
    client_group_ids: tuple[str, ...] = ()
    kms_key_id: str = ""
    made_for: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def physical_name(self) -> str:
        """Name of the resources. It contains a hash, because bucket names must be globally unique."""
        return f"cloudgpu-{self.name}-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    @classmethod
    def read(cls, config: pulumi.Config) -> "StorageArgs":
        """Read and validate every setting."""
        kind = _kind(config)
        keep = _yes(config, "keep", default=True)
        return cls(
            name=_matching(config, "storage", _NAME),
            owner=config.require("owner"),
            team=config.require("team"),
            token=config.require("token"),
            kind=kind,
            keep=keep,
            protect=_yes(config, "protect", default=keep),
            zone=_matching(config, "zone", _ZONE) if kind in _ZONAL else "",
            size_gib=_size(config, kind),
            deployment=_deployment(config),
            linked=_linked(config, kind),
            snapshot_id=(config.get("snapshotId") or "") if kind == "ebs" else "",
            vpc_id=config.get("vpcId") or "",
            subnet_ids=_ids(config, "subnetIds", "subnet"),
            client_group_ids=_ids(config, "clientSecurityGroupIds", "sg"),
            kms_key_id=config.get("kmsKeyId") or "",
            made_for=config.get("madeFor") or "",
            tags=_own_tags(config),
        )


def _wrong(key: str, value: str, expected: str) -> pulumi.RunError:
    return pulumi.RunError(f"cloudgpu:{key} is {value!r}, expected {expected}")


def _matching(config: pulumi.Config, key: str, pattern: re.Pattern[str]) -> str:
    value = config.require(key)
    if not pattern.fullmatch(value):
        raise _wrong(key, value, f"text that matches {pattern.pattern}")
    return value


def _kind(config: pulumi.Config) -> Kind:
    value = config.require("kind")
    if value not in _KINDS:
        raise _wrong("kind", value, " or ".join(_KINDS))
    return _KINDS[value]


def _deployment(config: pulumi.Config) -> Deployment:
    value = config.get("deployment") or "scratch_2"
    if value not in _DEPLOYMENTS:
        raise _wrong("deployment", value, " or ".join(_DEPLOYMENTS))
    return _DEPLOYMENTS[value]


def _yes(config: pulumi.Config, key: str, *, default: bool) -> bool:
    value = config.get(key) or ("true" if default else "false")
    if value not in ("true", "false"):
        raise _wrong(key, value, "true or false")
    return value == "true"


def _ids(config: pulumi.Config, key: str, kind: str) -> tuple[str, ...]:
    """Read a JSON list of IDs, or the comma-separated text of version 0.1.0, with which existing storage was made."""
    text = (config.get(key) or "").strip()
    items: list[Any] = [part.strip() for part in text.split(",") if part.strip()]
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError as err:
            raise _wrong(key, text, "a JSON list") from err
    if not all(isinstance(item, str) and re.fullmatch(rf"{kind}-[0-9a-z-]{{1,64}}", item) for item in items):
        raise _wrong(key, text, f"a JSON list of IDs ({kind}-...)")
    return tuple(items)


def _size(config: pulumi.Config, kind: Kind) -> int:
    value = config.get("sizeGib") or "0"
    if not value.isascii() or not value.isdigit():
        raise _wrong("sizeGib", value, "a whole number of GiB")
    size = int(value)
    if kind == "lustre" and not (size == _SMALLEST_LUSTRE_GIB or (size and size % _LUSTRE_STEP_GIB == 0)):
        raise _wrong("sizeGib", value, f"{_SMALLEST_LUSTRE_GIB} or a multiple of {_LUSTRE_STEP_GIB} for Lustre")
    if kind == "ebs" and not size and not config.get("snapshotId"):
        raise _wrong("sizeGib", value, "a size, or a cloudgpu:snapshotId that determines it")
    return size


def _linked(config: pulumi.Config, kind: Kind) -> str:
    value = config.get("linked") or ""
    if value and (kind != "lustre" or not _S3.fullmatch(value)):
        raise _wrong("linked", value, "s3://bucket/prefix, and cloudgpu:kind lustre")
    return value


def _own_tags(config: pulumi.Config) -> dict[str, str]:
    """Parse the user's own tags, a JSON object of texts. Keys that this program or AWS sets are rejected."""
    value = config.get("tags") or "{}"
    try:
        tags: Any = json.loads(value)
    except ValueError as err:
        raise _wrong("tags", value, "a JSON object") from err
    if not isinstance(tags, dict) or not all(isinstance(text, str) for text in tags.values()):
        raise _wrong("tags", value, "a JSON object whose values are texts")
    if any(key.lower().startswith(("aws:", "cloudgpu:")) or key.lower() == "name" for key in tags):
        raise _wrong("tags", value, "no key Name, aws:... or cloudgpu:..., which are reserved")
    return tags


def storage_tags(args: StorageArgs) -> dict[str, str]:
    """Return the tags that identify the storage even if every local record is lost."""
    made_for = {"cloudgpu:made-for": args.made_for} if args.made_for else {}
    return {
        **args.tags,
        "Name": f"cloudgpu-{args.name}",
        "cloudgpu:storage": args.name,
        "cloudgpu:kind": args.kind,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:keep": "true" if args.keep else "false",
        "cloudgpu:token": args.token,
        **made_for,
    }
