"""Shell completion of names: clusters, runs, recipes, GPUs, instance types, hosts and `--set` fields.

Completion runs at every press of Tab. It therefore reads only local files, lists names without reading the records, and
returns nothing instead of failing. What it needs is imported on demand, because every command imports this module.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import typer

Complete = Callable[[typer.Context, str], list[str]]


def _completion(names: Callable[[typer.Context, str], Iterable[str]]) -> Complete:
    """Return a completion that returns the names with the typed prefix, sorted, and never raises."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return sorted({name for name in names(ctx, incomplete) if name.startswith(incomplete)})
        except Exception:  # noqa: BLE001 - a traceback in the middle of a command line helps nobody
            return []

    return complete


def _recorded_names(folder: str, file: str) -> list[str]:
    """Return the names of the folders of a kind, such as `clusters`, that contain a record with this file name."""
    from cloudgpu.settings import load  # noqa: PLC0415 - see the module

    home = load(flags={}, environ=os.environ, cwd=Path.cwd()).home
    return [path.parent.name for path in (home / folder).glob(f"*/{file}")]


def _gpu_names() -> list[str]:
    """Return the GPUs of the bundled catalog."""
    from cloudgpu.catalog import catalog  # noqa: PLC0415 - see the module

    return list(catalog.load().gpus)


def _instance_type_names() -> list[str]:
    """Return the instance types that AWS offers."""
    from cloudgpu.catalog import catalog  # noqa: PLC0415 - see the module

    return [kind.name for kind in catalog.load().rentable if not kind.retired]


def _parameter_names(recipe: str) -> list[str]:
    """Return the parameters of a recipe as `NAME=`; nothing if the recipe does not exist or is invalid."""
    from cloudgpu.errors import CloudGpuError  # noqa: PLC0415 - see the module
    from cloudgpu.paths import bundled_folder  # noqa: PLC0415 - see the module
    from cloudgpu.recipe import loader  # noqa: PLC0415 - see the module
    from cloudgpu.recipe.local_files import EVERYWHERE  # noqa: PLC0415 - see the module

    try:
        path = loader.find(recipe, roots=(Path("recipes"), bundled_folder("recipes")))
        loaded = loader.load(path, allowed=EVERYWHERE)
    except CloudGpuError:
        return []
    return [f"{name}=" for name in loaded.recipe.params]


def _field_names(section: str) -> list[str]:
    """Return the fields of a recipe section as `FIELD=`, and its sections as `SECTION.`, by their dotted names."""
    from cloudgpu.recipe.schema import names_at  # noqa: PLC0415 - see the module

    path = tuple(section.split(".")) if section else ()
    prefix = f"{section}." if section else ""
    return [f"{prefix}{name}{'.' if names_at((*path, name)) else '='}" for name in names_at(path)]


@_completion
def clusters(_ctx: typer.Context, _incomplete: str) -> Iterable[str]:
    """Return the clusters in the state home."""
    return _recorded_names("clusters", "cluster.json")


@_completion
def runs(_ctx: typer.Context, _incomplete: str) -> Iterable[str]:
    """Return the runs in the state home."""
    return _recorded_names("runs", "run.json")


@_completion
def clusters_and_runs(_ctx: typer.Context, _incomplete: str) -> Iterable[str]:
    """Return the clusters and runs in the state home."""
    return [*_recorded_names("clusters", "cluster.json"), *_recorded_names("runs", "run.json")]


@_completion
def recipes(_ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the names of recipes, and matching folders and YAML files."""
    from cloudgpu.paths import bundled_folder  # noqa: PLC0415 - see the module

    named = [
        path.parent.name for root in (Path("recipes"), bundled_folder("recipes")) for path in root.glob("*/recipe.yaml")
    ]
    folder = incomplete.rpartition("/")[0]
    near = sorted(Path(folder or ".").expanduser().iterdir())
    prefix = f"{folder}/" if folder else "/" if incomplete.startswith("/") else ""
    found = [f"{prefix}{path.name}/" for path in near if path.is_dir() and not path.name.startswith(".")]
    found += [f"{prefix}{path.name}" for path in near if path.suffix in (".yaml", ".yml")]
    return [*named, *found]


@_completion
def gpus(_ctx: typer.Context, _incomplete: str) -> Iterable[str]:
    """Return the GPUs of the bundled catalog."""
    return _gpu_names()


@_completion
def hosts(_ctx: typer.Context, _incomplete: str) -> Iterable[str]:
    """Return the names of the self-managed hosts."""
    from cloudgpu.catalog import catalog  # noqa: PLC0415 - see the module
    from cloudgpu.hosts.loading import load as load_hosts  # noqa: PLC0415 - see the module
    from cloudgpu.settings import load  # noqa: PLC0415 - see the module

    settings = load(flags={}, environ=os.environ, cwd=Path.cwd())
    return [host.name for host in load_hosts(settings.hosts, user="", catalog=catalog.load()).hosts]


@_completion
def assignments(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Return parameters of the recipe and its fields as `NAME=`, and sections as `SECTION.`.

    After `=`, return the GPUs or instance types if the field is one.
    """
    name, assigned, _ = incomplete.partition("=")
    section, _, field = name.rpartition(".")
    if not assigned:
        # The option that is being typed has no value yet, which ends the parsing before the arguments are read.
        recipe = str(ctx.params.get("recipe") or next(iter(ctx.args), ""))
        parameters = _parameter_names(recipe) if recipe and not section else ()
        return [*_field_names(section), *parameters]
    values = {"instance_type": _instance_type_names, "gpu": _gpu_names}
    return [f"{name}={value}" for value in values[field]()] if field in values else []
