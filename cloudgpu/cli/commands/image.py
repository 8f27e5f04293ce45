"""`cloudgpu image`: manage your own machine images, created from bootstrapped nodes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from cloudgpu.app.images import BakedImage, DeletedImage, ImageBaker, bake_cluster_name, delete_image, image_json
from cloudgpu.app.planning.planner import plan_error
from cloudgpu.backends.billing.cost_ledger import check_ledger
from cloudgpu.backends.billing.retained_billing import image_monthly_usd as monthly_usd
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import (
    AllowOutside,
    Json,
    On,
    OneRegion,
    RecipeName,
    Region,
    Sets,
    Verbose,
    Yes,
    allowed_paths,
)
from cloudgpu.cli.planning import plan_recipe, requester
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.cli.terminal.number_format import age, money
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cloud import OwnImage
from cloudgpu.run.progress import Stages
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
app = typer.Typer(
    help="""Manage your own machine images for nodes.

    To list container images of frameworks, use `cloudgpu containers`.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Image name: lowercase letters, digits and dashes.")]


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


@app.command("bake")
def bake(  # noqa: PLR0917
    recipe: RecipeName,
    name: Annotated[str, typer.Option("--name", help="Image name. Default: the recipe's name.")] = "",
    sets: Sets = None,
    allow_outside: AllowOutside = False,
    on: On = None,
    region: Region = None,
    yes: Yes = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Bootstrap a node and create a machine image from it.

    Launches one node of the recipe's first available instance type, waits for its bootstrap to finish, checks the
    node, removes its keys, creates an image and terminates the node. Nodes that boot from the image skip the bootstrap
    steps.
    """
    context = command_context(
        json=json, verbose=verbose, target=on, region=region, allowed_paths=allowed_paths(allow_outside)
    )
    planned = plan_recipe(context, recipe, [*(sets or []), "resources.nodes=1"], offline=False)
    context.screen.lines(plan_lines(planned.plan, "", context.screen.width))
    if planned.plan.errors:
        raise plan_error(planned.plan)
    context.prompts.confirm("Go ahead?", yes=yes)
    stages, name = Stages(context.clock, context.screen.emit), name or planned.plan.recipe.name
    context.report_clusters_on_signal(bake_cluster_name(name))
    run_context = context.backend_context()
    baked = ImageBaker(run_context, requester(context), run_context.backend.images(), stages).bake(planned.plan, name)
    if json:
        context.screen.document({**baked.as_json(), "stages": stages.as_json()})
    else:
        *prose, use, delete = baked_lines(baked, recipe)
        context.screen.wrapped(["", *prose])
        context.screen.lines([use, delete])  # commands to copy


@app.command("list")
def show(on: On = None, region: OneRegion = None, json: Json = False) -> None:
    """List the images that cloudgpu has created in a region."""
    context = command_context(json=json, quits=True, target=on, region=region)
    own_images = context.backend().images().found(context.settings.region)
    if json:
        context.screen.document(
            {"region": context.settings.region, "images": [image_json(image) for image in own_images]}
        )
    else:
        screen = context.screen
        screen.lines(image_lines(own_images, context.clock.now(), context.settings.region, screen.width))


@app.command("delete")
def delete(
    name: Name,
    on: On = None,
    region: OneRegion = None,
    yes: Yes = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Delete an image and its snapshots.

    Running clusters are not affected, but new nodes cannot boot from the image. If `image bake` was interrupted, also
    terminates the node that it launched.
    """
    context = command_context(json=json, verbose=verbose, needs_disk=False, target=on, region=region)
    region_name = context.settings.region
    context.prompts.confirm(f"Delete image {name} in {region_name}?", yes=yes)
    deletion = context.deletion_context()
    with context.screen.working("delete"):
        deleted = delete_image(deletion, deletion.backend.images(), region_name, name)
    check_ledger(deletion.ledger, f"image {name} is deleted")
    if json:
        context.screen.document(deleted_json(deleted, name, region_name))
    else:
        context.screen.wrapped(deleted_lines(deleted, name))
