"""`cloudgpu recipe`: new, check, show, list, and the JSON Schema for editors."""

from typing import Annotated

import typer

from cloudgpu.cli.options import Json, On, RecipeName, Sets
from cloudgpu.cli.table import columns

app = typer.Typer(
    help="""Begin, check, show and list recipes.

    A recipe is a file that says what to run, on which machines, for how long and for how much money at most.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name: lower case letters, digits and dashes.")],
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu", metavar="GPU:COUNT", help="GPU and how many a node, as `cloudgpu gpus` has it: V100-32GB:8."
        ),
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=1000, help="How many such machines.")] = 1,
    region: Annotated[
        str, typer.Option("--region", help="Region; left out, yours (settings: region) or the cheapest that has it.")
    ] = "",
    spot: Annotated[bool, typer.Option("--spot", help="Buy spare capacity that AWS may take back.")] = False,
    json: Json = False,
) -> None:
    """Begin a recipe that already runs.

    Writes recipes/NAME in the current folder: a recipe with comments that say what to change, and a script that runs
    as it stands. An instance type may stand for the GPU: --gpu p3dn.24xlarge.
    """
    from pathlib import Path

    from cloudgpu.app.beginning import Wish, begin, write
    from cloudgpu.cli.show_begun import begun_json, begun_lines
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json)
    begun = begin(
        Wish(name, gpu, nodes, region, "spot" if spot else "on-demand"), wiring.catalog, wiring.settings.region
    )
    folder = Path("recipes") / name
    write(begun, folder)
    if json:
        wiring.screen.document(begun_json(begun, folder))
    else:
        wiring.screen.lines(begun_lines(begun, folder))


@app.command("check")
def check(recipe: RecipeName, sets: Sets = None, json: Json = False) -> None:
    """Say whether a recipe is right.

    Every problem at once, with file, line and field.
    """
    from cloudgpu.app.planning import read_sets
    from cloudgpu.cli.wiring import recipe_roots, wire
    from cloudgpu.recipe import loading
    from cloudgpu.recipe.resolve import resolve

    wiring = wire(json=json)
    loaded = loading.load(loading.find(recipe, roots=recipe_roots()))
    for rehearsed in (False, True):
        resolve(loaded, sets=read_sets(sets or []), rehearsal=rehearsed)
    if json:
        wiring.screen.document({"recipe": loaded.recipe.name, "path": str(loaded.path), "ok": True})
    else:
        wiring.screen.line(f"{loaded.path}: {loaded.recipe.name} is a valid recipe")


@app.command("show")
def show(recipe: RecipeName, on: On = None, sets: Sets = None, json: Json = False) -> None:
    """Show a recipe as it would run.

    Parameters are set, and with `--on rehearsal` its rehearsal stanza is applied.
    """
    from cloudgpu.app.planning import read_sets
    from cloudgpu.cli.wiring import recipe_roots, wire
    from cloudgpu.recipe import loading
    from cloudgpu.recipe.document import as_yaml
    from cloudgpu.recipe.resolve import resolve

    wiring = wire(json=json, target=on)
    loaded = loading.load(loading.find(recipe, roots=recipe_roots()))
    rehearsed = on == "rehearsal"
    resolved = resolve(loaded, sets=read_sets(sets or []), rehearsal=rehearsed)
    if json:
        wiring.screen.document(resolved.model_dump(mode="json", by_alias=True))
    else:
        wiring.screen.line(as_yaml(resolved).rstrip())


@app.command("list")
def list_recipes(json: Json = False) -> None:
    """List the recipes that bare names find."""
    from cloudgpu.cli.wiring import recipe_roots, wire
    from cloudgpu.recipe import loading

    wiring = wire(json=json)
    found = [loading.load(path).recipe for path in loading.known(recipe_roots())]
    if json:
        wiring.screen.document([{"name": one.name, "description": one.description} for one in found])
    else:
        wiring.screen.lines(columns([(one.name, one.description) for one in found]) or ["no recipes"])


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipe files."""
    import json as encoder

    from cloudgpu.recipe.documentation import schema as recipe_schema

    typer.echo(encoder.dumps(recipe_schema(), indent=2))
