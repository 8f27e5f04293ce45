"""The shell script of a recipe: the files that a node needs to run it, and the variables that it reads."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from cloudgpu.launch.command import SCRIPT_STARTER, placeholder_values
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext, NodeFile, NodeLaunch
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.scripts import RUN_VARIABLES, variable_name

_SCRIPT = "script/run.sh"


def with_script(gang: Sequence[NodeLaunch], recipe: Recipe, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Add the recipe's script to the files of every node, because `mpirun` starts it on nodes without own ranks."""
    if not recipe.launch.run:
        return tuple(gang)
    files = (NodeFile(_SCRIPT, recipe.launch.run), _starter(ctx))
    return tuple(replace(node, files=(*node.files, *files)) for node in gang)


def script_variables(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> dict[str, str]:
    """Return the parameters, directories and addresses that a command would get through placeholders."""
    if not recipe.launch.run:
        return {}
    known = template.placeholders(recipe)
    values = placeholder_values(recipe, inventory, ctx)
    return {
        variable_name(name): template.format_value(values[name])
        for name in known
        if name in values and name not in RUN_VARIABLES
    }


def _starter(ctx: LaunchContext) -> NodeFile:
    """Return a script that runs the recipe's script, with the run's Python first on the PATH.

    The recipe's script stays as written, so that the line numbers in bash's messages are those of the recipe.
    """
    folder = PurePosixPath(ctx.interpreter).parent
    path = [f"PATH={shlex.quote(str(folder))}:$PATH; export PATH"] if folder.is_absolute() else []
    run = f"exec bash -eo pipefail {shlex.quote(f'{ctx.run_dir}/{_SCRIPT}')}"
    return NodeFile(SCRIPT_STARTER, "\n".join(("#!/bin/sh", *path, run)) + "\n", 0o700)
