"""`cloudgpu image`: manage your own machine images, created from bootstrapped nodes."""

from typing import Annotated

import typer

from cloudgpu.app.images.bake import ImageBaker, bake_cluster_name, delete_image, image_json
from cloudgpu.app.planning.planner import plan_error
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.billing.lenient_ledger import check_ledger
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import (
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
from cloudgpu.cli.planning.request import plan_recipe
from cloudgpu.cli.planning.requester import requester
from cloudgpu.cli.render.image import baked_lines, deleted_json, deleted_lines, image_lines
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal

app = typer.Typer(
    help="""Manage your own machine images for nodes.

    To list container images of frameworks, use `cloudgpu containers`.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Image name: lowercase letters, digits and dashes.")]


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
    stages, name = Stages(context.clock, context.emit), name or planned.plan.recipe.name
    report_clusters_on_signal(context.records, bake_cluster_name(name))
    run_context = context.context()
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
    check_ledger(deletion, f"image {name} is deleted")
    if json:
        context.screen.document(deleted_json(deleted, name, region_name))
    else:
        context.screen.wrapped(deleted_lines(deleted, name))
