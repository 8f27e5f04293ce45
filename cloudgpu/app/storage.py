"""Convert the options of `storage create` to a storage request, and reject invalid options before any cloud request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cloudgpu.backends.storage import StorageRequest
from cloudgpu.bounds import MAX_VOLUME_GIB
from cloudgpu.catalog.prices_and_quotas import Price, storage_price
from cloudgpu.catalog.unsupported import unsupported_partition
from cloudgpu.errors import UsageError
from cloudgpu.recipe.sources import (
    LUSTRE_STEP_GIB,
    SMALLEST_LUSTRE_GIB,
    Deployment,
    StorageKind,
    is_lustre_size,
)
from cloudgpu.state.identifiers import require_storage_name
from cloudgpu.text import command

_ZONE: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9]+)(?:[a-z]|-[a-z]+-[0-9]+[a-z])")
_S3: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^\s*?]*)?")


@dataclass(frozen=True)
class StorageOptions:
    """The options of `storage create`. An empty string, 0 or None means that the option was omitted."""

    name: str
    kind: StorageKind
    size_gib: int = 0
    zone: str = ""
    deployment: Deployment | None = None
    linked: str = ""
    snapshot_id: str = ""
    disposable: bool = False


def make_storage_request(typed: StorageOptions, default_region: str, named: Mapping[str, str]) -> StorageRequest:
    """Return the request for the storage to create.

    `named` contains the settings that select existing resources, such as a VPC.

    Raises:
        UsageError: An option is missing, invalid, or does not apply to this kind of storage.
    """
    require_storage_name(typed.name)
    _refuse_foreign(typed)
    _check_size(typed)
    region = _region(typed, default_region)
    if unsupported := unsupported_partition(region):
        raise UsageError(unsupported, hint="use a region of the partition aws, such as us-east-1")
    config = {
        "zone": typed.zone,
        "sizeGib": str(typed.size_gib or ""),
        "deployment": (typed.deployment or "scratch_2") if typed.kind == "lustre" else "",
        "linked": typed.linked,
        "snapshotId": typed.snapshot_id,
        **named,
    }
    return StorageRequest(
        typed.name, typed.kind, region, typed.disposable, {key: text for key, text in config.items() if text}
    )


def request_price(requested: StorageRequest, kind: StorageKind) -> tuple[Price | None, Decimal | None]:
    """Return the price per GiB and the monthly cost.

    The price is None if unknown. The cost is None if the price is unknown or the cost depends on the stored data.
    """
    price = storage_price(kind, requested.region, requested.config.get("deployment", ""))
    size = requested.config.get("sizeGib")
    return price, price.usd * Decimal(size) if price and size else None


def _refuse_foreign(typed: StorageOptions) -> None:
    specified = {
        "--size": bool(typed.size_gib),
        "--zone": bool(typed.zone),
        "--deployment": typed.deployment is not None,
        "--linked": bool(typed.linked),
        "--from-snapshot": bool(typed.snapshot_id),
    }
    allowed: dict[StorageKind, frozenset[str]] = {
        "efs": frozenset(),
        "s3": frozenset(),
        "ebs": frozenset({"--size", "--zone", "--from-snapshot"}),
        "lustre": frozenset({"--size", "--zone", "--deployment", "--linked"}),
    }
    foreign = [option for option, present in specified.items() if present and option not in allowed[typed.kind]]
    if foreign:
        grows = f"{typed.kind} storage grows with its content and has no such options"
        reason = grows if typed.kind in ("efs", "s3") else "only other kinds of storage have this option"
        message = f"{', '.join(foreign)} does not apply to {typed.kind}: {reason}"
        raise UsageError(message, hint="run `cloudgpu storage create --help`")


def _check_size(typed: StorageOptions) -> None:
    size = typed.size_gib
    if size < 0:
        message = f"--size {size}: expected a positive whole number of GiB"
        raise UsageError(message)
    if typed.kind == "lustre" and not is_lustre_size(size):
        message = f"--size {size}: Lustre requires {SMALLEST_LUSTRE_GIB} GiB or a multiple of {LUSTRE_STEP_GIB}"
        raise UsageError(message, hint=f"use {command('--size', str(SMALLEST_LUSTRE_GIB))}")
    if typed.kind == "ebs" and not size and not typed.snapshot_id:
        message = "a volume requires --size in GiB, or --from-snapshot"
        raise UsageError(message, hint="add an option such as --size 500")
    if typed.kind == "ebs" and size > MAX_VOLUME_GIB:
        message = f"--size {size}: a gp3 volume has at most {MAX_VOLUME_GIB} GiB"
        raise UsageError(message, hint=f"use {command('--size', str(MAX_VOLUME_GIB))}")
    if typed.linked and not _S3.fullmatch(typed.linked):
        message = f"--linked {typed.linked}: expected s3://bucket/prefix"
        raise UsageError(message)


def _region(typed: StorageOptions, default_region: str) -> str:
    if typed.kind not in ("ebs", "lustre"):
        return default_region
    match = _ZONE.fullmatch(typed.zone)
    if match is None:
        message = f"{typed.kind} storage is in one zone: set --zone to the zone in which clusters will use the storage"
        raise UsageError(message, hint=f"use a zone such as {command('--zone', f'{default_region}a')}")
    return match[1]
