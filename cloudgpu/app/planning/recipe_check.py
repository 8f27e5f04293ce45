"""Check a recipe without a plan: the GPUs that it requests, its local files, and how its setup runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cloudgpu.app.planning.local_files import file_problems
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.gpu_spec import why_no_such_gpu
from cloudgpu.catalog.unsupported import unsupported_type
from cloudgpu.plan.checks.environment import SETUP_IN_IMAGE, runs_setup_in_image
from cloudgpu.plan.named_resources import ChangedParam
from cloudgpu.recipe.loader import LoadedRecipe, resolve
from cloudgpu.recipe.local_files import ALLOW_HINT, OUTSIDE
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.template import format_value

_ADD_FILES = "add the files, or correct their names"
_LIST_GPUS = "to list GPUs with their memory: cloudgpu gpus"


@dataclass(frozen=True)
class RecipeFindings:
    """What is wrong with a recipe, what may be wrong, and what its author should know."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    notes: tuple[str, ...]
    hint: str


def check_recipe(loaded: LoadedRecipe, sets: Mapping[str, str], catalog: Catalog) -> RecipeFindings:
    """Check a recipe with values of `--set` applied. Files are also checked with its `rehearsal` section applied.

    Raises:
        RecipeError: The recipe is invalid.
    """
    recipe = resolve(loaded, sets=sets, rehearsal=False)
    missing, doubtful = file_problems(loaded, sets)
    changed = tuple(changed_params(loaded, recipe))
    impossible = tuple(_gpu_problems(recipe, catalog))
    unavailable = tuple(_retired_types(recipe, catalog))
    if len(unavailable) == len(_specs(recipe)):
        impossible, unavailable = (*impossible, *unavailable), ()
    return RecipeFindings(
        problems=(*impossible, *missing),
        warnings=(
            *unavailable,
            *doubtful,
            *(Problem(("params", param.name), param.text) for param in changed if param.looks_like_text),
        ),
        notes=(
            *((SETUP_IN_IMAGE,) if runs_setup_in_image(recipe) else ()),
            *(f"params.{param.name}: {param.text}" for param in changed if not param.looks_like_text),
        ),
        hint="; ".join([*_file_hints(missing), *([_LIST_GPUS] if impossible else [])]),
    )


def changed_params(loaded: LoadedRecipe, recipe: Recipe) -> Iterator[ChangedParam]:
    """Yield the parameters that YAML changes, except those that `--set` or the rehearsal section replaces."""
    for name, written in loaded.rewritten.items():
        value = recipe.params[name]
        if value == loaded.recipe.params[name]:
            yield ChangedParam(name, written, format_value(value))


def _file_hints(problems: Sequence[Problem]) -> Iterator[str]:
    outside = [problem for problem in problems if OUTSIDE in problem.message]
    if len(outside) < len(problems):
        yield _ADD_FILES
    if outside:
        yield ALLOW_HINT


def _gpu_problems(recipe: Recipe, catalog: Catalog) -> Iterator[Problem]:
    """Yield the GPUs that do not exist and the instance types that cloudgpu cannot use.

    Any other type that the catalog does not contain may be newer than the catalog, so it is not a problem.
    """
    for field, spec in _specs(recipe).items():
        why = why_no_such_gpu(spec, catalog) or str(unsupported_type(spec) or "")
        if why:
            yield Problem(field, why)


def _retired_types(recipe: Recipe, catalog: Catalog) -> Iterator[Problem]:
    """Yield the instance types that AWS has retired. They do not matter as long as the recipe also allows others."""
    for field, spec in _specs(recipe).items():
        if spec in catalog.types and catalog.types[spec].retired:
            yield Problem(field, catalog.types[spec].retirement)


def _specs(recipe: Recipe) -> Mapping[FieldPath, str]:
    """Return the GPU specs and instance types of a recipe by field."""
    resources = recipe.resources
    specs: dict[FieldPath, str] = {("resources", "any_of", index): spec for index, spec in enumerate(resources.any_of)}
    if resources.gpu:
        specs["resources", "gpu"] = resources.gpu
    if resources.instance_type:
        specs["resources", "instance_type"] = resources.instance_type
    return specs
