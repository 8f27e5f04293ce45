"""Machine images as text."""

from collections.abc import Sequence
from datetime import datetime

from cloudgpu.app.images import Baked, monthly_usd
from cloudgpu.aws.own_images import OwnImage
from cloudgpu.cli.figures import age, money
from cloudgpu.cli.table import columns
from cloudgpu.cli.terminal import printable

_HEADINGS = ("name", "image", "state", "for", "region", "owner", "age", "GiB", "$/month at most")


def image_lines(images: Sequence[OwnImage], now: datetime, region: str) -> list[str]:
    """A table; says so when there is none."""
    if not images:
        return [f"no images of cloudgpu's in {region}"]
    return columns([_HEADINGS, *(_row(one, now) for one in images)], right={6, 7, 8})


def baked_lines(baked: Baked, recipe: str) -> list[str]:
    """What was made, what it cost, what it costs from now on, and how it is used."""
    image = baked.image
    simulated = " (simulated)" if baked.simulated else ""
    cost = f"{money(baked.usd)} is what AWS would have charged" if baked.simulated else f"{money(baked.usd)}"
    return [
        f"image {image.name} is {image.id} in {image.region}{simulated}",
        f"  made of   {image.tags.get('cloudgpu:made-from', '')}, bootstrapped",
        f"  cost      {cost}; at most {money(monthly_usd(image))} a month until it is deleted ({image.size_gib} GiB)",
        f"  use it    cloudgpu train {recipe} --region {image.region} --set resources.image={image.id}",
        f"  end it    cloudgpu image delete {image.name} --region {image.region}",
    ]


def deleted_lines(image: OwnImage) -> list[str]:
    """What is gone."""
    return [f"image {image.name} ({image.id}) and {len(image.snapshots)} snapshots are deleted"]


def _row(one: OwnImage, now: datetime) -> tuple[str, ...]:
    return (
        printable(one.name),
        one.id,
        one.state,
        printable(one.tags.get("cloudgpu:gpu-architecture", "")),
        one.region,
        printable(one.owner),
        age((now - one.made_at).total_seconds()),
        str(one.size_gib),
        money(monthly_usd(one)),
    )
