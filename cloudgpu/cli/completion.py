"""Shell completion of names: clusters, runs, recipes, GPUs, instance types, hosts and `--set` fields.

Completion runs at every press of Tab. It therefore reads only local files, lists names without reading the records, and
returns nothing instead of failing. What it needs is imported on demand, because every command imports this module.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import typer

from cloudgpu.cli.lazy import Deferred

_recorded_names: Deferred[[str, str], list[str]] = Deferred("cloudgpu.cli.recorded_names.recorded_names")
_gpu_names: Deferred[[], list[str]] = Deferred("cloudgpu.cli.known_names.gpu_names")
_instance_type_names: Deferred[[], list[str]] = Deferred("cloudgpu.cli.known_names.instance_type_names")
_host_names: Deferred[[], list[str]] = Deferred("cloudgpu.cli.known_names.host_names")
_bundled_folder: Deferred[[str], Path] = Deferred("cloudgpu.paths.bundled_folder")
_parameter_names: Deferred[[str], list[str]] = Deferred("cloudgpu.cli.known_names.parameter_names")
_field_names: Deferred[[str], list[str]] = Deferred("cloudgpu.cli.known_names.field_names")

Complete = Callable[[typer.Context, str], list[str]]


def _completion(names: Callable[[typer.Context, str], Iterable[str]]) -> Complete:
    """Return a completion that returns the names with the typed prefix, sorted, and never raises."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return sorted({name for name in names(ctx, incomplete) if name.startswith(incomplete)})
        except Exception:  # noqa: BLE001 - a traceback in the middle of a command line helps nobody
            return []

    return complete


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
    named = [
        path.parent.name
        for root in (Path("recipes"), _bundled_folder("recipes"))
        for path in root.glob("*/recipe.yaml")
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
    return _host_names()


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
        return [*_field_names(section), *(_parameter_names(recipe) if recipe and not section else ())]
    values = {"instance_type": _instance_type_names, "gpu": _gpu_names}
    return [f"{name}={value}" for value in values[field]()] if field in values else []
