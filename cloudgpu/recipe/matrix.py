"""Expand `--matrix` into every combination of parameter and field values."""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.recipe.loader import LoadedRecipe, resolve
from cloudgpu.recipe.problem import FieldPath
from cloudgpu.recipe.schema import Recipe, digest, to_plain_values
from cloudgpu.recipe.set_option import assign
from cloudgpu.text import command

MAX_COMBINATIONS: Final = 256
"""Maximum number of combinations. Combinations run one after another, and the nodes are billed the whole time."""
_EXAMPLE: Final = "for example --matrix kvstore=dist_sync,dist_async"


@dataclass(frozen=True)
class Axis:
    """A matrix axis: a parameter or field and its values, as typed."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Combination:
    """A matrix combination: one value per axis, and the resulting recipe."""

    values: tuple[tuple[str, str], ...]
    recipe: Recipe

    @property
    def label(self) -> str:
        """The values, such as `kvstore=dist_sync compression=2bit`."""
        return format_values(self.values)

    @property
    def digest(self) -> str:
        """Digest of the recipe, which shows whether the recipe has changed since the combination ran."""
        return digest(self.recipe)


def format_values(values: Sequence[tuple[str, str]]) -> str:
    """Format a combination for display."""
    return " ".join(f"{name}={value}" for name, value in values)


def read_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Parse `--matrix name=value,value` options. A value that contains a comma must be in double quotes."""
    axes = tuple(_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            hint = f"list all values in one option: {command('--matrix', f'{name}=A,B,C')}"
            raise UsageError(f"--matrix {name} is given twice", hint=hint)
    count = prod(len(axis.values) for axis in axes)
    if count > MAX_COMBINATIONS:
        sizes = " x ".join(str(len(axis.values)) for axis in axes)
        message = f"--matrix: {sizes} make {count:,} combinations; the limit is {MAX_COMBINATIONS}"
        raise UsageError(message, hint="remove values, or split them into several matrices")
    return axes


def combinations(
    loaded: LoadedRecipe, axes: Sequence[Axis], sets: Mapping[str, str], *, rehearsal: bool
) -> tuple[Combination, ...]:
    """Return every combination with its resolved recipe. The last axis changes fastest."""
    _check_axes(loaded, axes, sets)
    expanded: list[Combination] = []
    problems: dict[str, list[str]] = {}
    products = list(itertools.product(*(axis.values for axis in axes)))
    for values in products:
        pairs = tuple(zip((axis.name for axis in axes), values, strict=True))
        try:
            expanded.append(Combination(pairs, resolve(loaded, sets={**sets, **dict(pairs)}, rehearsal=rehearsal)))
        except RecipeError as err:
            for line in err.problems or (err.message,):
                problems.setdefault(line, []).append(format_values(pairs))
    if problems:
        lines = [f"{label_combinations(labels, len(products))}: {line}" for line, labels in problems.items()]
        message = f"the recipe {loaded.recipe.name} is invalid for some combinations of this matrix"
        raise RecipeError(message, problems=lines, hint="remove those values, or fix the recipe")
    _reject_duplicate_runs(expanded)
    return tuple(expanded)


def _axis(text: str) -> Axis:
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--matrix {text}: expected NAME=VALUE,VALUE", hint=_EXAMPLE)
    try:
        listed = [value.strip() for value in next(csv.reader([values], skipinitialspace=True), [])]
    except csv.Error as err:  # a line break outside quotes
        raise UsageError(f"--matrix {name.strip()}: cannot parse the values: {err}", hint=_EXAMPLE) from err
    if not listed or not all(listed):
        raise UsageError(f"--matrix {text}: a value is empty", hint=_EXAMPLE)
    duplicate = next((value for value in listed if listed.count(value) > 1), None)
    if duplicate is not None:
        raise UsageError(f"--matrix {text}: {duplicate} is given twice", hint=_EXAMPLE)
    return Axis(name.strip(), tuple(listed))


def _check_axes(loaded: LoadedRecipe, axes: Sequence[Axis], sets: Mapping[str, str]) -> None:
    """Check every value separately, so that an invalid value is reported once instead of once per combination."""
    problems: list[str] = []
    hint = ""
    paths: dict[FieldPath, str] = {_path(loaded, name, text): f"--set {name}" for name, text in sets.items()}
    for axis in axes:
        axis_paths: set[FieldPath] = set()
        for value in axis.values:
            try:
                axis_paths.add(_path(loaded, axis.name, value))
            except RecipeError as err:
                problems.append(err.message.replace("--set ", "--matrix ", 1))
                hint = hint or err.hint
        for path in axis_paths:
            if path in paths:
                message = f"--matrix {axis.name} and {paths[path]} set the same field"
                raise UsageError(message, hint="remove one of them")
            paths[path] = f"--matrix {axis.name}"
    problems = list(dict.fromkeys(problems))
    if problems:
        raise RecipeError(
            problems[0] if len(problems) == 1 else f"the matrix has {len(problems)} problems",
            problems=problems,
            hint=hint,
        )


def _path(loaded: LoadedRecipe, name: str, text: str) -> FieldPath:
    return assign(to_plain_values(loaded.recipe), name, text)


def _reject_duplicate_runs(combinations: Sequence[Combination]) -> None:
    seen: dict[str, Combination] = {}
    for combination in combinations:
        other = seen.setdefault(combination.digest, combination)
        if other is not combination:
            message = f"--matrix: {other.label} and {combination.label} result in the same run"
            raise UsageError(message, hint="remove one of the values")


def label_combinations(labels: Sequence[str], count: int) -> str:
    """Return the text that messages use to identify the combinations with these labels."""
    return f"all {count} combinations" if len(labels) == count > 1 else "; ".join(labels)


def axis_fields(axes: Sequence[Axis], loaded: LoadedRecipe) -> Iterator[tuple[Axis, FieldPath]]:
    """Yield each axis together with its field path."""
    for axis in axes:
        yield axis, _path(loaded, axis.name, axis.values[0])
