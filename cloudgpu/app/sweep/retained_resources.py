"""Storage and machine images as a sweep sees them: whose, how old, what they cost, and what would end them. Pure."""

from collections.abc import Set
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from cloudgpu.app.images.bake import monthly_usd as image_monthly_usd
from cloudgpu.app.storage.overview import monthly_usd as storage_monthly_usd
from cloudgpu.app.sweep.cluster_resources import SweepRequest, Verdict
from cloudgpu.aws.ec2.baked_images import OwnImage
from cloudgpu.aws.storage.stored import Stored
from cloudgpu.text import command


@dataclass(frozen=True)
class RetainedResource:
    """One thing that no cluster's end touches, as its tags tell of it.

    Attributes:
        kind: `efs`, `lustre`, `ebs` or `s3` of storage; the GPU's architecture of an image.
        since: When it was made; None where the cloud does not say.
        size_gib: None where it is not known.
        monthly_usd: None where it is not known; of an image at most.
        made_for: The cluster that it ends with; empty where there is none.
        users: Instances that may use it now.
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
        """`storage sets`."""
        return f"{self.noun} {self.name}"

    @property
    def ends_by(self) -> str:
        """The command that ends it."""
        kept = [] if self.disposable or self.noun == "image" else ["--delete-data"]
        return command("cloudgpu", self.noun, "delete", self.name, "--region", self.region, *kept)

    def as_json(self, now: datetime) -> dict[str, Any]:
        """The documented row of `sweep --json`."""
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
            "ends_by": self.ends_by,
        }


def of_storage(one: Stored) -> RetainedResource:
    """Storage."""
    data = one.data
    return RetainedResource(
        noun="storage",
        name=one.name,
        token=one.token,
        kind=one.kind,
        owner=one.tag("cloudgpu:owner"),
        region=one.region,
        id=data.id if data else "",
        since=data.created_at if data else None,
        size_gib=data.size_gib if data else Decimal(0),
        monthly_usd=storage_monthly_usd(one),
        disposable=one.disposable,
        made_for=one.made_for,
        users=one.users or (),
    )


def of_image(one: OwnImage) -> RetainedResource:
    """A machine image."""
    return RetainedResource(
        noun="image",
        name=one.name,
        token=one.tags.get("cloudgpu:token", ""),
        kind=one.tags.get("cloudgpu:gpu-architecture", ""),
        owner=one.owner,
        region=one.region,
        id=one.id,
        since=one.made_at,
        size_gib=Decimal(one.size_gib),
        monthly_usd=image_monthly_usd(one),
    )


@dataclass(frozen=True)
class Around:
    """What is known of the clusters that things were made for.

    Attributes:
        clusters: Names of those that have something in the cloud, anybody's.
        here: Those that this home has a record of, or is at just now.
        all_asked: Whether every region answered.
    """

    clusters: Set[str]
    here: Set[str]
    all_asked: bool


def verdict(one: RetainedResource, around: Around, request: SweepRequest) -> Verdict:
    """Whether it may go. Data that is not disposable never does by a sweep. The first rule that holds decides."""
    cluster = one.made_for
    # Nodes of the cluster that it ends with go before it does; that is looked at again then.
    others = [user for user in one.users if not (cluster and user.endswith(f"(cluster {cluster})"))]
    rules = (
        (one.noun == "image", False, f"`{one.ends_by}` ends it"),
        (bool(others), False, f"in use by {', '.join(others)}"),
        (not one.disposable, False, f"holds data that was to be kept; `{one.ends_by}` ends it"),
        (not cluster, False, f"disposable, and made by name; `{one.ends_by}` ends it"),
        (cluster in around.clusters, False, f"ends with cluster {cluster}, which is there"),
        (cluster in around.here, False, f"ends with cluster {cluster}: `{command('cloudgpu', 'down', cluster)}`"),
        (not around.all_asked, False, f"ends with cluster {cluster}, which may be where nobody answered"),
        (one.owner in request.owners, True, f"{one.owner}'s, as asked, and cluster {cluster} is gone"),
        (
            one.owner != request.caller,
            False,
            f"{one.owner or 'nobody known'}'s; {command('--owner', one.owner)} removes it",
        ),
    )
    gone = Verdict(goes=True, why=f"disposable, and its cluster {cluster} is gone")
    return next((Verdict(goes, why) for holds, goes, why in rules if holds), gone)
