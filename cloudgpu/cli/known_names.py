"""Names of GPUs, instance types, self-managed hosts and recipe fields, for shell completion."""

import os
from pathlib import Path

from cloudgpu.catalog import catalog
from cloudgpu.errors import CloudGpuError
from cloudgpu.hosts.loading import load as load_hosts
from cloudgpu.paths import bundled_folder
from cloudgpu.recipe.loader import find
from cloudgpu.recipe.loader import load as load_recipe
from cloudgpu.recipe.local_files import EVERYWHERE
from cloudgpu.recipe.schema import names_at
from cloudgpu.settings import load


def gpu_names() -> list[str]:
    """Return the GPUs of the bundled catalog."""
    return list(catalog.load().gpus)


def instance_type_names() -> list[str]:
    """Return the instance types that AWS offers."""
    return [kind.name for kind in catalog.load().rentable if not kind.retired]


def host_names() -> list[str]:
    """Return the names of the self-managed hosts."""
    settings = load(flags={}, environ=os.environ, cwd=Path.cwd())
    return [host.name for host in load_hosts(settings.hosts, user="", catalog=catalog.load()).hosts]


def parameter_names(recipe: str) -> list[str]:
    """Return the parameters of a recipe as `NAME=`; nothing if the recipe does not exist or is invalid."""
    try:
        loaded = load_recipe(find(recipe, roots=(Path("recipes"), bundled_folder("recipes"))), allowed=EVERYWHERE)
    except CloudGpuError:
        return []
    return [f"{name}=" for name in loaded.recipe.params]


def field_names(section: str) -> list[str]:
    """Return the fields of a recipe section as `FIELD=`, and its sections as `SECTION.`, by their dotted names."""
    path = tuple(section.split(".")) if section else ()
    prefix = f"{section}." if section else ""
    return [f"{prefix}{name}{'.' if names_at((*path, name)) else '='}" for name in names_at(path)]
