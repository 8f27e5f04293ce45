"""Keep a recipe's commands and variables within what Linux hands to a new program.

`execve` refuses one argument or one NAME=VALUE of 128 KiB (MAX_ARG_STRLEN), and all of them together above a quarter of
the stack's limit. A recipe that exceeds this would fail on every node after the launch.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu import bounds
from cloudgpu.recipe import template
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Environment, Recipe, Scalar

_KIB: Final = 1024
_MOST_TOGETHER: Final = 1024 * _KIB
"""Half of what Linux allows with the usual stack of 8 MiB: launchers and the node itself add to it."""
_LEAST_TOGETHER: Final = 128 * _KIB
"""What Linux allows however small the stack is."""
_ON_ONE_LINE: Final = 96 * _KIB
"""Of the 128 KiB of one argument: such a launcher exports all variables on the command line of `ssh`."""
_EXPORTS_BY_SSH: Final = frozenset({"mpirun", "deepspeed"})
_POINTER: Final = 8
_FILLED_LATER: Final = "x" * 4095
"""Stands for a path of the node that is not known yet: PATH_MAX without its terminating NUL."""


def arguments_small_enough(recipe: Recipe) -> Iterator[Problem]:
    """Find arguments and variables that no program can be started with."""
    environment, path = recipe.environment, ("environment",)
    yield from _variables(environment, path)
    if recipe.rehearsal and recipe.rehearsal.environment:
        yield from _variables(recipe.rehearsal.environment, ("rehearsal", "environment"))
    variables = sum(_taken(f"{name}={value}") for name, value in environment.env.items())
    most = _most_together(environment)
    for place, command in _commands(recipe):
        words = _words(recipe, command)
        size = max(map(_bytes, words), default=0)
        together = variables + sum(map(_taken, words))
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = f"an argument of {size:,} bytes; Linux takes at most {bounds.MAX_ARGUMENT_BYTES:,}: use a file"
            yield Problem(place, message)
        elif together > most:
            message = f"with environment.env it takes {together:,} bytes to start it, and {most:,} are safe: use a file"
            yield Problem(place, message)
    yield from _exported_by_ssh(recipe)


def _variables(environment: Environment, path: FieldPath) -> Iterator[Problem]:
    for name, value in environment.env.items():
        size = _bytes(f"{name}={value}")
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = f"{size:,} bytes with its name; Linux takes at most {bounds.MAX_ARGUMENT_BYTES:,}: use a file"
            yield Problem((*path, "env", name), message)


def _exported_by_ssh(recipe: Recipe) -> Iterator[Problem]:
    launcher = recipe.launch.launcher
    if launcher not in _EXPORTS_BY_SSH or recipe.resources.nodes == 1:
        return
    # Quoted twice: for the shell of the node, and for the one that `docker exec` starts.
    lines = (f"export {name}={shlex.quote(shlex.quote(value))}; " for name, value in recipe.environment.env.items())
    size = sum(map(_bytes, lines))
    if size > _ON_ONE_LINE:
        message = f"{launcher} sends all of it in one argument of ssh: {size:,} bytes, and {_ON_ONE_LINE:,} are safe"
        yield Problem(("environment", "env"), message)


def _commands(recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    yield ("launch", "command"), recipe.launch.command
    for index, service in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index, "command"), service.command
    if recipe.rehearsal and recipe.rehearsal.command is not None:
        yield ("rehearsal", "command"), recipe.rehearsal.command


def _words(recipe: Recipe, command: str) -> tuple[str, ...]:
    """The arguments as they will be at most; none of a command that another rule refuses."""
    names: dict[str, Scalar] = {**dict.fromkeys(template.placeholders(recipe), _FILLED_LATER), **recipe.params}
    names |= _longer(recipe.params, recipe.rehearsal.params if recipe.rehearsal else {})
    names |= dict.fromkeys(template.SERVICE_NAMES, _FILLED_LATER)
    return () if any(template.problems(command, names)) else template.argv(command, names)


def _longer(params: Mapping[str, Scalar], rehearsed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: max(value, params.get(name), key=lambda one: len(str(one))) for name, value in rehearsed.items()}


def _most_together(environment: Environment) -> int:
    stack_mib = environment.container.stack_mib if environment.container else None
    return _MOST_TOGETHER if stack_mib is None else min(_MOST_TOGETHER, max(_LEAST_TOGETHER, stack_mib * 256 * _KIB))


def _taken(text: str) -> int:
    """What one argument takes: its bytes, the NUL behind it, and a pointer to it."""
    return _bytes(text) + 1 + _POINTER


def _bytes(text: str) -> int:
    return len(text.encode())
