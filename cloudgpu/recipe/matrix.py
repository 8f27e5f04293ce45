"""A matrix: parameters and fields with several values each, and every combination of them. Pure."""

import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.recipe.assignment import assign
from cloudgpu.recipe.digest import digest
from cloudgpu.recipe.loading import LoadedRecipe
from cloudgpu.recipe.plain import plain
from cloudgpu.recipe.problem import FieldPath
from cloudgpu.recipe.resolve import resolve
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command

MOST: Final = 256
"""Combinations of one matrix: they run one after the other on machines that are paid by the hour."""
_EXAMPLE: Final = "for instance --matrix kvstore=dist_sync,dist_async"


@dataclass(frozen=True)
class Axis:
    """One parameter or field, and the values that it takes, as they were typed."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Combination:
    """One value for each axis, and the recipe that this makes."""

    values: tuple[tuple[str, str], ...]
    recipe: Recipe

    @property
    def label(self) -> str:
        """`kvstore=dist_sync compression=2bit`."""
        return shown(self.values)

    @property
    def digest(self) -> str:
        """What tells whether the recipe is still the one that was run."""
        return digest(self.recipe)


def shown(values: Sequence[tuple[str, str]]) -> str:
    """A combination as one reads it."""
    return " ".join(f"{name}={value}" for name, value in values)


def read_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of `--matrix name=value,value` options; a value with a comma stands in double quotes.

    Raises:
        UsageError: One is no such text, names nothing, stands there twice, or there are too many combinations.
    """
    axes = tuple(_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            hint = f"all its values in one: {command('--matrix', f'{name}=A,B,C')}"
            raise UsageError(f"--matrix {name} is given twice", hint=hint)
    count = prod(len(axis.values) for axis in axes)
    if count > MOST:
        sizes = " x ".join(str(len(axis.values)) for axis in axes)
        message = f"--matrix: {sizes} make {count:,} combinations; {MOST} at most run in one matrix"
        raise UsageError(message, hint="they run one after the other: leave values out, or begin several matrices")
    return axes


def combinations(
    loaded: LoadedRecipe, axes: Sequence[Axis], sets: Mapping[str, str], *, rehearsal: bool
) -> tuple[Combination, ...]:
    """Every combination, the last axis changing fastest, each as the recipe that would run.

    Raises:
        RecipeError: A name leads nowhere, a value is of the wrong type, or combinations make the recipe wrong; every
            problem of all of them.
        UsageError: A field is set beside, or two combinations are the same run.
    """
    _check_axes(loaded, axes, sets)
    made: list[Combination] = []
    problems: dict[str, list[str]] = {}
    chosen = list(itertools.product(*(axis.values for axis in axes)))
    for values in chosen:
        pairs = tuple(zip((axis.name for axis in axes), values, strict=True))
        try:
            made.append(Combination(pairs, resolve(loaded, sets={**sets, **dict(pairs)}, rehearsal=rehearsal)))
        except RecipeError as err:
            for line in err.problems or (err.message,):
                problems.setdefault(line, []).append(shown(pairs))
    if problems:
        lines = [f"{about(labels, len(chosen))}: {line}" for line, labels in problems.items()]
        message = f"the recipe {loaded.recipe.name} is wrong with some combinations of this matrix"
        raise RecipeError(message, problems=lines, hint="leave those values out, or correct the recipe")
    _refuse_same_runs(made)
    return tuple(made)


def _axis(text: str) -> Axis:
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"--matrix {text}: expected NAME=VALUE,VALUE", hint=_EXAMPLE)
    try:
        listed = [value.strip() for value in next(csv.reader([values], skipinitialspace=True), [])]
    except csv.Error as err:  # a line break outside of quotes
        raise UsageError(f"--matrix {name.strip()}: its values cannot be read: {err}", hint=_EXAMPLE) from err
    if not listed or not all(listed):
        raise UsageError(f"--matrix {text}: a value is empty", hint=_EXAMPLE)
    double = next((value for value in listed if listed.count(value) > 1), None)
    if double is not None:
        raise UsageError(f"--matrix {text}: {double} stands there twice", hint=_EXAMPLE)
    return Axis(name.strip(), tuple(listed))


def _check_axes(loaded: LoadedRecipe, axes: Sequence[Axis], sets: Mapping[str, str]) -> None:
    """Try every value by itself: what is wrong with one is told once, and not for each of its combinations."""
    problems: list[str] = []
    hint = ""
    paths: dict[FieldPath, str] = {_path(loaded, name, text): f"--set {name}" for name, text in sets.items()}
    for axis in axes:
        found: set[FieldPath] = set()
        for value in axis.values:
            try:
                found.add(_path(loaded, axis.name, value))
            except RecipeError as err:
                problems.append(err.message.replace("--set ", "--matrix ", 1))
                hint = hint or err.hint
        for path in found:
            if path in paths:
                message = f"--matrix {axis.name} and {paths[path]} are the same field"
                raise UsageError(message, hint="leave one of them out")
            paths[path] = f"--matrix {axis.name}"
    problems = list(dict.fromkeys(problems))
    if problems:
        raise RecipeError(problems[0] if len(problems) == 1 else "--matrix is wrong", problems=problems, hint=hint)


def _path(loaded: LoadedRecipe, name: str, text: str) -> FieldPath:
    return assign(plain(loaded.recipe), name, text)


def _refuse_same_runs(made: Sequence[Combination]) -> None:
    seen: dict[str, Combination] = {}
    for one in made:
        other = seen.setdefault(one.digest, one)
        if other is not one:
            message = f"--matrix: {other.label} and {one.label} are the same run"
            raise UsageError(message, hint="leave one of the values out")


def about(labels: Sequence[str], count: int) -> str:
    """Which of all combinations something is about, for a message."""
    return f"all {count} combinations" if len(labels) == count > 1 else "; ".join(labels)


def fields_of(axes: Sequence[Axis], loaded: LoadedRecipe) -> Iterator[tuple[Axis, FieldPath]]:
    """Each axis with the field that it means."""
    for axis in axes:
        yield axis, _path(loaded, axis.name, axis.values[0])
