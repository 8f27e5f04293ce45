"""`cloudgpu containers`: list framework containers and the GPUs they support."""

from typing import Annotated

import typer

from cloudgpu.app.planning.container_search import ContainerQuery, find_containers
from cloudgpu.catalog.software import software
from cloudgpu.cli import completion
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.render.containers import container_lines, containers_json


def containers(
    framework: Annotated[str, typer.Option("--framework", help="Show only this framework, such as pytorch.")] = "",
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            help="Omit containers that cannot run on this GPU, and show how well each container supports it.",
            autocompletion=completion.gpus,
        ),
    ] = "",
    latest_for: Annotated[
        str,
        typer.Option(
            "--latest-for",
            metavar="GPU",
            autocompletion=completion.gpus,
            help="For each framework, show only the latest container that was compiled for this GPU.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List framework containers and the GPUs they run on.

    Lists container images for PyTorch, TensorFlow, MXNet and other frameworks. A container runs on a GPU if it has
    native code for the GPU's compute capability, or for a lower minor version of the same major version. To manage the
    machine images that nodes boot, use `cloudgpu image`.
    """
    context = command_context(json=json, quits=True)
    listing = find_containers(ContainerQuery(framework, gpu, latest_for), context.catalog, software())
    if json:
        context.screen.document(containers_json(listing))
    else:
        context.screen.lines(container_lines(listing, context.screen.width))
