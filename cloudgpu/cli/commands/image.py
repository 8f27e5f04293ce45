"""`cloudgpu image`: manage your own machine images, created from bootstrapped nodes."""

from typing import Annotated

import typer

from cloudgpu.app.images.bake import bake_cluster_name, delete_image, image_json
from cloudgpu.app.planning.planner import plan_error
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.lenient_ledger import check_ledger
from cloudgpu.cli.commands.options import Json, On, OneRegion, RecipeName, Region, Sets, Yes
from cloudgpu.cli.context import plans
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.image import baked_lines, deleted_json, deleted_lines, image_lines
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.cli.terminal.still_running import report_clusters_on_signal

app = typer.Typer(
    help="""Manage your own machine images for nodes.

    To list container images of frameworks, use `cloudgpu images`.
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
    on: On = None,
    region: Region = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Bootstrap a node and create a machine image from it.

    Launches one node of the recipe's first available instance type, waits for its bootstrap to finish, checks the
    node, removes its keys, creates an image and terminates the node. Nodes that boot from the image skip the bootstrap
    steps.
    """
    wiring = wire(json=json, target=on, region=region)
    planned = plans.plan_recipe(wiring, recipe, [*(sets or []), "resources.nodes=1"], offline=False)
    wiring.screen.lines(plan_lines(planned.plan, ""))
    if planned.plan.errors:
        raise plan_error(planned.plan)
    wiring.prompts.confirm("Go ahead?", yes=yes)
    stages, name = Stages(wiring.clock, wiring.emit), name or planned.plan.recipe.name
    report_clusters_on_signal(wiring.records, bake_cluster_name(name))
    baked = wiring.image_baker(planned.plan.target, stages).bake(planned.plan, name)
    if json:
        wiring.screen.document({**baked.as_json(), "stages": stages.as_json()})
    else:
        wiring.screen.lines(["", *baked_lines(baked, recipe)])


@app.command("list")
def show(on: On = None, region: OneRegion = None, json: Json = False) -> None:
    """List the images that cloudgpu has created in a region."""
    wiring = wire(json=json, quits=True, target=on, region=region)
    own_images = wiring.images(wiring.settings.target).found(wiring.settings.region)
    if json:
        wiring.screen.document(
            {"region": wiring.settings.region, "images": [image_json(image) for image in own_images]}
        )
    else:
        wiring.screen.lines(image_lines(own_images, wiring.clock.now(), wiring.settings.region))


@app.command("delete")
def delete(name: Name, on: On = None, region: OneRegion = None, yes: Yes = False, json: Json = False) -> None:
    """Delete an image and its snapshots.

    Running clusters are not affected, but new nodes cannot boot from it. If `image bake` was interrupted, also
    terminates its node.
    """
    wiring = wire(json=json, needs_disk=False, target=on, region=region)
    target, region_name = wiring.settings.target, wiring.settings.region
    wiring.prompts.confirm(f"Delete image {name} in {region_name}?", yes=yes)
    context = wiring.cloud_cleanup_context(target)
    deleted = delete_image(context, wiring.images(target), region_name, name)
    check_ledger(context, f"image {name} is deleted")
    if json:
        wiring.screen.document(deleted_json(deleted, name, region_name))
    else:
        wiring.screen.lines(deleted_lines(deleted, name))
