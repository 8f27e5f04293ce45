"""Validation rules for the shell scripts of a recipe."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.recipe import template
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.scripts import variable_name

_PLACEHOLDER: Final = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def script_problems(script: str, recipe: Recipe, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem for an empty script, for placeholders, and for parameters that share a variable."""
    if not script.strip():
        yield Problem(path, "expected a shell script, got nothing")
    known = template.placeholders(recipe)
    for name in dict.fromkeys(match[1] for match in _PLACEHOLDER.finditer(script) if match[1] in known):
        yield Problem(
            path, f'placeholders are not substituted in a script: write "${variable_name(name)}" for {{{name}}}'
        )
    taken: dict[str, str] = {}
    for name in known:
        first = taken.setdefault(variable_name(name), name)
        if first != name:
            message = f"{first} and {name} would both be {variable_name(name)} in the script; rename one of them"
            yield Problem(path, message)


def setup_problems(script: str, recipe: Recipe, path: FieldPath) -> Iterator[Problem]:
    """Yield a problem for every placeholder in a setup script, which is the same for all runs."""
    known = template.placeholders(recipe)
    for name in dict.fromkeys(match[1] for match in _PLACEHOLDER.finditer(script) if match[1] in known):
        message = f"{{{name}}} is not substituted: setup is the same for all runs; set a variable in environment.env"
        yield Problem(path, message)
