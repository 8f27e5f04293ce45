"""Describe storage and machine images, which outlive clusters. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from cloudgpu.backends.billing.retained_prices import image_monthly_usd, storage_monthly_usd
from cloudgpu.text import command

if TYPE_CHECKING:
    # Only for annotations: `--help` must not import boto3.
    from cloudgpu.aws.ec2.baked_images import OwnImage
    from cloudgpu.aws.storage.storage_tags import TaggedStorage


@dataclass(frozen=True)
class RetainedResource:
    """Storage or a machine image, as described by its tags. Both outlive clusters.

    Attributes:
        kind: `efs`, `lustre`, `ebs` or `s3` for storage; the GPU architecture for an image.
        since: Creation time, or None if unknown.
        size_gib: Size in GiB, or None if unknown.
        monthly_usd: Cost per month, or None if unknown; an upper bound for an image.
        made_for: Name of the cluster whose deletion also deletes the resource, or empty.
        users: Instances that may be using the resource; also empty if unknown.
    """

    noun: Literal["storage", "image"]
    name: str
    token: str
    kind: str
    owner: str
    region: str
    id: str
    since: datetime | None
    size_gib: Decimal | None
    monthly_usd: Decimal | None
    disposable: bool = False
    made_for: str = ""
    users: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Noun and name, for example `storage sets`."""
        return f"{self.noun} {self.name}"

    @property
    def delete_command(self) -> str:
        """Command that deletes the resource."""
        kept = [] if self.disposable or self.noun == "image" else ["--delete-data"]
        return command("cloudgpu", self.noun, "delete", self.name, "--region", self.region, *kept)

    def as_json(self, now: datetime) -> dict[str, Any]:
        """Return the documented entry of `sweep --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "owner": self.owner or None,
            "region": self.region,
            "id": self.id,
            "age_s": round((now - self.since).total_seconds()) if self.since else None,
            "size_gib": None if self.size_gib is None else str(self.size_gib),
            "monthly_usd": None if self.monthly_usd is None else str(self.monthly_usd),
            "disposable": self.disposable,
            "made_for": self.made_for,
            "used_by": list(self.users),
            "ends_by": self.delete_command,
        }


def retained_storage(stored: TaggedStorage) -> RetainedResource:
    """Convert storage to a retained resource."""
    data = stored.data
    return RetainedResource(
        noun="storage",
        name=stored.name,
        token=stored.token,
        kind=stored.kind,
        owner=stored.tag("cloudgpu:owner"),
        region=stored.region,
        id=data.id if data else "",
        since=data.created_at if data else None,
        size_gib=data.size_gib if data else Decimal(0),
        monthly_usd=storage_monthly_usd(stored),
        disposable=stored.disposable,
        made_for=stored.made_for,
        users=stored.users or (),
    )


def retained_image(image: OwnImage) -> RetainedResource:
    """Convert a machine image to a retained resource."""
    return RetainedResource(
        noun="image",
        name=image.name,
        token=image.tags.get("cloudgpu:token", ""),
        kind=image.tags.get("cloudgpu:gpu-architecture", ""),
        owner=image.owner,
        region=image.region,
        id=image.id,
        since=image.made_at,
        size_gib=Decimal(image.size_gib),
        monthly_usd=image_monthly_usd(image),
    )
