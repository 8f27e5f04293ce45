"""`cloudgpu recipe`: create, check, show and list recipes, and print their JSON Schema."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from cloudgpu.app.planning.planner import read_sets
from cloudgpu.app.planning.recipe_check import check_recipe
from cloudgpu.app.planning.recipe_scaffold import ScaffoldRequest, make_scaffold, write_scaffold
from cloudgpu.catalog import Catalog
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import AllowOutside, Json, On, RecipeName, Sets, allowed_paths, integer_parser
from cloudgpu.cli.planning.request import recipe_roots
from cloudgpu.cli.render.recipe import CheckedRecipe, check_lines, invalid_recipes_error, list_lines
from cloudgpu.cli.render.recipe_scaffold import scaffold_json, scaffold_lines
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.documentation import schema as recipe_schema
from cloudgpu.recipe.loading import loader
from cloudgpu.recipe.loading.document import as_yaml
from cloudgpu.recipe.loading.files import EVERYWHERE
from cloudgpu.recipe.loading.resolve import resolve
from cloudgpu.recipe.summary import summary
from cloudgpu.targets import is_simulated

app = typer.Typer(
    help="""Create, check, show and list recipes.

    A recipe is a file that defines what to run, on which machines, for how long and at what maximum cost.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("new")
def new(  # noqa: PLR0917
    name: Annotated[str, typer.Argument(metavar="NAME", help="Recipe name: lowercase letters, digits and dashes.")],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            metavar="GPU:COUNT",
            help="GPU and number per node, such as V100-32GB:8 (see `cloudgpu gpus`), or an instance type.",
        ),
    ],
    nodes: Annotated[int, typer.Option("--nodes", parser=integer_parser(1, 1000), help="Number of nodes.")] = 1,
    region: Annotated[
        str,
        typer.Option(
            "--region",
            help="Region. Default: the `region` setting if the GPU is offered there, else the cheapest region.",
        ),
    ] = "",
    launcher: Annotated[
        Literal["torchrun", "each-node", "head-only", "service", "script"],
        typer.Option(
            "--launcher",
            help="torchrun: one rank per GPU. each-node: one process per node. head-only: one process on the head "
            "node. service: a server on the head node. script: a shell script that runs several commands on every "
            "node.",
        ),
    ] = "torchrun",
    spot: Annotated[bool, typer.Option("--spot", help="Use spot instances, which AWS can reclaim.")] = False,
    json: Json = False,
) -> None:
    """Create a recipe that is ready to run.

    Creates recipes/NAME in the current folder: a recipe with comments on what to change, and a script that runs
    without changes.
    """
    context = command_context(json=json)
    scaffold = make_scaffold(
        ScaffoldRequest(name, gpu, nodes, region, "spot" if spot else "on-demand", launcher),
        context.catalog,
        context.settings.region,
    )
    folder = Path("recipes") / name
    write_scaffold(scaffold, folder)
    if json:
        context.screen.document(scaffold_json(scaffold, folder))
    else:
        context.screen.lines(scaffold_lines(scaffold, folder, context.screen.width))


@app.command("check")
def check(recipe: RecipeName, sets: Sets = None, allow_outside: AllowOutside = False, json: Json = False) -> None:
    """Check a recipe.

    Reports all problems, each with its file, line and field. For a folder of recipes, checks every recipe in it.
    """
    context = command_context(json=json, allowed_paths=allowed_paths(allow_outside))
    allowed = context.settings.allowed_paths
    paths = loader.find_all(recipe, roots=recipe_roots())
    if len(paths) == 1:
        checked = [_checked(paths[0], sets or [], context.catalog, allowed)]
    else:
        checked = [_checked_with_problems(path, sets or [], context.catalog, allowed) for path in paths]
        if any(result.problems for result in checked):
            context.screen.wrapped(check_lines(checked))
            raise invalid_recipes_error(checked)
    if not json:
        context.screen.wrapped(check_lines(checked))
    elif len(paths) == 1:
        context.screen.document(checked[0].as_json())
    else:
        context.screen.document({"ok": True, "recipes": [result.as_json() for result in checked]})


@app.command("show")
def show(recipe: RecipeName, on: On = None, sets: Sets = None, json: Json = False) -> None:
    """Show a recipe as it would run.

    Substitutes the parameters and, if the target is `rehearsal`, which is the default, applies the recipe's `rehearsal`
    section. To show the recipe as it would run on AWS, use --on aws.
    """
    context = command_context(json=json, target=on)
    loaded = loader.load(loader.find(recipe, roots=recipe_roots()), allowed=EVERYWHERE)
    rehearsed = is_simulated(context.settings.target)
    resolved = resolve(loaded, sets=read_sets(sets or []), rehearsal=rehearsed)
    if json:
        context.screen.document(resolved.model_dump(mode="json", by_alias=True))
    else:
        context.screen.lines(as_yaml(resolved).rstrip().split("\n"))


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """List the recipes that can be run by name.

    Shows the hardware, launcher, software and reference value of each recipe. Invalid recipes are listed last.
    """
    context = command_context(json=json)
    summaries, invalid = [], []
    for path in loader.find_named_recipes(recipe_roots()):
        try:
            summaries.append(summary(loader.load(path, allowed=EVERYWHERE).recipe))
        except RecipeError as err:
            invalid.append(CheckedRecipe(path, path.parent.name, err.problems or (err.message,)))
    if json:
        damaged = [{"name": recipe.name, "description": "", "problems": list(recipe.problems)} for recipe in invalid]
        context.screen.document([*(recipe.as_json() | {"problems": []} for recipe in summaries), *damaged])
    else:
        context.screen.lines(list_lines(summaries, invalid, context.screen.width))


def _checked(path: Path, sets: Sequence[str], catalog: Catalog, allowed: Sequence[Path]) -> CheckedRecipe:
    """Check a recipe."""
    loaded = loader.load(path, allowed=allowed)
    found = check_recipe(loaded, read_sets(sets), catalog)
    if found.problems:
        count = "one problem" if len(found.problems) == 1 else f"{len(found.problems)} problems"
        message = f"{loader.display_path(path)} has {count}"
        raise RecipeError(message, problems=loader.located(path, found.problems), hint=found.hint)
    warnings = loader.located(path, found.warnings)
    return CheckedRecipe(loaded.path, loaded.recipe.name, warnings=warnings, notes=found.notes)


def _checked_with_problems(path: Path, sets: Sequence[str], catalog: Catalog, allowed: Sequence[Path]) -> CheckedRecipe:

    try:
        return _checked(path, sets, catalog, allowed)
    except RecipeError as err:
        return CheckedRecipe(path, path.parent.name, err.problems or (err.message,))


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipe files."""
    Screen().document(recipe_schema())
