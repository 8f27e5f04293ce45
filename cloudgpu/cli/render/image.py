"""Machine images as text and as JSON."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from cloudgpu.app.images.bake import BakedImage, DeletedImage, image_json
from cloudgpu.aws.ec2.baked_images import OwnImage
from cloudgpu.backends.billing.retained_prices import image_monthly_usd as monthly_usd
from cloudgpu.cli.terminal.number_format import age, money
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.text import command, plural

_COLUMNS = (
    Column("name"),
    Column("image", priority=1, whole=True),
    Column("state", priority=1),
    Column("for", priority=3),
    Column("region", priority=4),
    Column("owner", priority=5, narrow="hide"),
    Column("age", right=True, priority=2),
    Column("GiB", right=True, priority=6, narrow="hide"),
    Column("$/month at most", right=True, priority=1),
)


def image_lines(images: Sequence[OwnImage], now: datetime, region: str, width: int | None = None) -> list[str]:
    """Return a table of images, or a single line if there are none."""
    if not images:
        return [f"no images in {region}"]
    return Table(_COLUMNS, [_row(image, now) for image in images]).lines(width)


def baked_lines(baked: BakedImage, recipe: str) -> list[str]:
    """Return the image that was created, its cost, and how to use and delete it."""
    image = baked.image
    simulated = " (simulated)" if baked.simulated else ""
    cost = f"{money(baked.usd)} (simulated; nothing was charged)" if baked.simulated else money(baked.usd)
    where, setting = ("--region", image.region), f"resources.image={image.id}"
    return [
        f"image {image.name} is {image.id} in {image.region}{simulated}",
        f"  based on  {image.tags.get('cloudgpu:made-from', '')}, bootstrapped",
        f"  cost      {cost}; at most {money(monthly_usd(image))} a month until it is deleted ({image.size_gib} GiB)",
        f"  use it    {command('cloudgpu', 'train', recipe, *where, '--set', setting)}",
        f"  delete    {command('cloudgpu', 'image', 'delete', image.name, *where)}",
    ]


def deleted_json(deleted: DeletedImage, name: str, region: str) -> dict[str, Any]:
    """Return the documented output of `image delete --json`."""
    shown = (
        image_json(deleted.image) if deleted.image else {"name": name, "id": None, "region": region, "snapshots": []}
    )
    state = "deleted" if deleted.image else "never made"
    return {**shown, "state": state, "node_ended": deleted.node, "left": []}


def deleted_lines(deleted: DeletedImage, name: str) -> list[str]:
    """Return lines about the deleted image, its snapshots and the node of an interrupted bake."""
    node = ["  the node of an interrupted `image bake` is also terminated"] if deleted.node else []
    if deleted.image is None:
        return [f"image {name} does not exist", *node]
    image = deleted.image
    snapshots = plural(len(image.snapshots), "snapshot")
    return [f"image {image.name} ({image.id or image.state}) and {snapshots} are deleted", *node]


def _row(image: OwnImage, now: datetime) -> tuple[str, ...]:
    return (
        image.name,
        image.id or "-",
        image.state,
        image.tags.get("cloudgpu:gpu-architecture", ""),
        image.region,
        image.owner,
        age((now - image.made_at).total_seconds()),
        str(image.size_gib),
        money(monthly_usd(image)),
    )
