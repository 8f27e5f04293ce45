"""`cloudgpu recipe`: create, check, show and list recipes, and print their JSON Schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cloudgpu.app.planning.planner import read_sets
from cloudgpu.app.planning.recipe_check import check_recipe
from cloudgpu.app.planning.recipe_scaffold import Scaffold, ScaffoldRequest, make_scaffold, write_scaffold
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.ranking import Offer
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import AllowOutside, Json, On, RecipeName, Sets, allowed_paths, integer_parser
from cloudgpu.cli.planning import recipe_roots
from cloudgpu.cli.terminal.number_format import amount, money
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.table import Column, Table, definition_lines
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import RecipeError
from cloudgpu.recipe import loader
from cloudgpu.recipe.document import as_yaml
from cloudgpu.recipe.documentation import Summary, summary
from cloudgpu.recipe.documentation import schema as recipe_schema
from cloudgpu.recipe.loader import display_path, resolve
from cloudgpu.recipe.local_files import EVERYWHERE
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

_WHAT = {
    "recipe.yaml": "the recipe, with comments on what to change",
    "train.py": "the script that every rank runs",
    "serve.py": "the server",
}
_COLUMNS = (
    Column("recipe"),
    Column("on", narrow="wrap"),
    Column("with", priority=2),
    Column("software", priority=3),
    Column("reference", priority=1, narrow="wrap"),
    Column("description", label="", below=True),
)
app = typer.Typer(
    help="""Create, check, show and list recipes.

    A recipe is a file that defines what to run, on which machines, for how long and at what maximum cost.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


def scaffold_lines(scaffold: Scaffold, folder: Path, width: int | None = None) -> list[str]:
    """Return the files that were written, the hardware that the recipe uses, and suggested commands."""
    offer, name = scaffold.offer, scaffold.name
    instance_type = offer.kind
    gpus = f"{instance_type.gpus} x {instance_type.gpu} {amount(instance_type.gpu_memory_gib)} GiB"
    each = " each" if scaffold.nodes > 1 else ""
    hardware = f"{scaffold.nodes} x {instance_type.name} ({gpus}{each}) in {offer.region}"
    hourly = _for_all(scaffold, offer)
    if scaffold.most_expensive.kind != instance_type:
        hourly += f" (at most {_for_all(scaffold, scaffold.most_expensive)}, on {scaffold.most_expensive.kind.name})"
    most = " on demand; spot capacity costs less" if scaffold.market == "spot" else ""
    return [
        *wrap_lines([f"{folder} is ready: {hardware}, {hourly} an hour{most}"], width),
        *definition_lines([(str(folder / file), _WHAT[file]) for file in scaffold.files], width),
        "",
        "next:",
        *definition_lines(
            [
                (command("cloudgpu", "plan", name), "what it would do and cost; changes nothing"),
                (
                    command("cloudgpu", "train", name, "--on", "rehearsal"),
                    "rehearse the run on this machine at no cost",
                ),
                (
                    command("cloudgpu", "doctor", "--on", "aws", "--region", str(offer.region)),
                    "check whether your AWS account is ready",
                ),
                (_quota(scaffold), "check whether your quota is sufficient"),
                (command("cloudgpu", "train", name, "--on", "aws"), "run it on AWS; asks before spending money"),
            ],
            width,
        ),
    ]


def _for_all(scaffold: Scaffold, offer: Offer) -> str:
    return money((offer.hourly_usd or Decimal(0)) * scaffold.nodes)


def _quota(scaffold: Scaffold) -> str:
    nodes = ["--nodes", str(scaffold.nodes)] if scaffold.nodes > 1 else []
    market = [] if scaffold.market == "on-demand" else ["--market", scaffold.market]
    where, instance_type = str(scaffold.offer.region), scaffold.offer.kind.name
    return command(
        "cloudgpu", "quota", "--on", "aws", "--region", where, "--instance-type", instance_type, *nodes, *market
    )


def scaffold_json(scaffold: Scaffold, folder: Path) -> dict[str, Any]:
    """Return the documented output of `recipe new --json`."""
    offer = scaffold.offer
    return {
        "recipe": scaffold.name,
        "path": str(folder / "recipe.yaml"),
        "files": [str(folder / file) for file in scaffold.files],
        "instance_type": offer.kind.name,
        "nodes": scaffold.nodes,
        "market": scaffold.market,
        "region": offer.region,
        "node_hourly_usd": None if offer.hourly_usd is None else f"{offer.hourly_usd:f}",
    }


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe file that was checked. `problems` is empty if the recipe is valid."""

    path: Path
    name: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {
            "recipe": self.name,
            "path": str(self.path),
            "ok": not self.problems,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def list_lines(summaries: Sequence[Summary], invalid: Sequence[CheckedRecipe], width: int | None = None) -> list[str]:
    """Return a table row per recipe, each followed by the recipe's description, then one line per invalid recipe."""
    if not summaries and not invalid:
        return ["no recipes"]
    table = Table(_COLUMNS, [_row(summary) for summary in summaries])
    return [*table.lines(width), *wrap_lines([_wrong_line(summary) for summary in invalid], width)]


def check_lines(checked: Sequence[CheckedRecipe]) -> list[str]:
    """Return one line per valid recipe, each followed by its warnings and notes."""
    return [
        line
        for result in checked
        if not result.problems
        for line in (
            f"{display_path(result.path)}: {result.name} is a valid recipe",
            *(f"  warning: {warning}" for warning in result.warnings),
            *(f"  note: {note}" for note in result.notes),
        )
    ]


def invalid_recipes_error(checked: Sequence[CheckedRecipe]) -> RecipeError:
    """Return one error that lists all problems of the invalid recipes."""
    invalid = [result for result in checked if result.problems]
    problems = [line for result in invalid for line in result.problems]
    message = f"{len(invalid)} of {len(checked)} recipes have problems: {', '.join(result.name for result in invalid)}"
    return RecipeError(message, problems=problems, hint="to see the allowed fields: cloudgpu recipe schema")


def _row(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        summary.hardware,
        summary.launcher,
        summary.software or "-",
        summary.reference or "-",
        summary.description,
    )


def _wrong_line(result: CheckedRecipe) -> str:
    count = "a problem" if len(result.problems) == 1 else f"{len(result.problems)} problems"
    check = command("cloudgpu", "recipe", "check", str(result.path.parent))
    return f"{result.name}  has {count}; for details: {check}"


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
