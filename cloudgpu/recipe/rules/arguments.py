"""Validate that a recipe's commands and environment variables fit the limits of `execve`.

Linux rejects any argument or NAME=VALUE string of 128 KiB or more (MAX_ARG_STRLEN), and a total above a quarter of the
stack limit. A recipe that exceeds either limit would fail on every node after the launch.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu import bounds
from cloudgpu.recipe import template
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.schema import Environment, Recipe, Scalar

_KIB: Final = 1024
_SAFE_TOTAL: Final = 1024 * _KIB
"""Half the total that Linux allows with the default 8 MiB stack. Launchers and the node add further variables."""
_MINIMUM_TOTAL: Final = 128 * _KIB
"""Total that Linux allows even with a very small stack limit."""
_SAFE_SSH_ARGUMENT: Final = 96 * _KIB
"""Safe limit, below the 128 KiB per argument, for launchers that export all variables in a single `ssh` argument."""
_EXPORTS_BY_SSH: Final = frozenset({"mpirun", "deepspeed"})
_POINTER: Final = 8
_LONGEST_PATH: Final = "x" * 4095
"""Placeholder for a node path that is not known yet, at the maximum length: PATH_MAX without the terminating NUL."""


def argument_size_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield a problem for every command and variable that exceeds the limits of `execve` or of the launcher."""
    environment = recipe.environment
    yield from _variable_problems(environment, ("environment",))
    if recipe.rehearsal and recipe.rehearsal.environment:
        yield from _variable_problems(recipe.rehearsal.environment, ("rehearsal", "environment"))
    variables = sum(_occupied_bytes(f"{name}={value}") for name, value in environment.env.items())
    limit = _safe_total(environment)
    for path, command in _commands(recipe):
        words = _longest_arguments(recipe, command)
        size = max(map(_bytes, words), default=0)
        total = variables + sum(map(_occupied_bytes, words))
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = f"an argument has {size:,} bytes; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,}; use a file"
            yield Problem(path, message)
        elif total > limit:
            message = (
                f"command and environment.env take {total:,} bytes together; the safe limit is {limit:,}; use a file"
            )
            yield Problem(path, message)
    yield from _ssh_argument_problems(recipe)


def _variable_problems(environment: Environment, path: FieldPath) -> Iterator[Problem]:
    for name, value in environment.env.items():
        size = _bytes(f"{name}={value}")
        if size > bounds.MAX_ARGUMENT_BYTES:
            message = (
                f"{size:,} bytes including its name; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,}; use a file"
            )
            yield Problem((*path, "env", name), message)


def _ssh_argument_problems(recipe: Recipe) -> Iterator[Problem]:
    launcher = recipe.launch.launcher
    if launcher not in _EXPORTS_BY_SSH or recipe.resources.nodes == 1:
        return
    # Quoted twice: once for the node's shell, once for the shell that `docker exec` starts.
    lines = (f"export {name}={shlex.quote(shlex.quote(value))}; " for name, value in recipe.environment.env.items())
    size = sum(map(_bytes, lines))
    if size > _SAFE_SSH_ARGUMENT:
        message = (
            f"{launcher} passes env in one ssh argument: {size:,} bytes, but the safe limit is {_SAFE_SSH_ARGUMENT:,}"
        )
        yield Problem(("environment", "env"), message)


def _commands(recipe: Recipe) -> Iterator[tuple[FieldPath, str]]:
    if recipe.launch.command:
        yield ("launch", "command"), recipe.launch.command
    for index, service in enumerate(recipe.launch.beside):
        yield ("launch", "beside", index, "command"), service.command
    if recipe.rehearsal and recipe.rehearsal.command is not None:
        yield ("rehearsal", "command"), recipe.rehearsal.command


def _longest_arguments(recipe: Recipe, command: str) -> tuple[str, ...]:
    """Return the longest possible arguments of a command; empty if another rule rejects the command."""
    names: dict[str, Scalar] = {**dict.fromkeys(template.placeholders(recipe), _LONGEST_PATH), **recipe.params}
    names |= _longer_values(recipe.params, recipe.rehearsal.params if recipe.rehearsal else {})
    names |= dict.fromkeys(template.SERVICE_NAMES, _LONGEST_PATH)
    return () if any(template.placeholder_problems(command, names)) else template.argv(command, names)


def _longer_values(params: Mapping[str, Scalar], rehearsed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {name: max(value, params.get(name), key=lambda value: len(str(value))) for name, value in rehearsed.items()}


def _safe_total(environment: Environment) -> int:
    stack_mib = environment.container.stack_mib if environment.container else None
    return _SAFE_TOTAL if stack_mib is None else min(_SAFE_TOTAL, max(_MINIMUM_TOTAL, stack_mib * 256 * _KIB))


def _occupied_bytes(text: str) -> int:
    """Return the bytes that one argument occupies: its text, a NUL and a pointer."""
    return _bytes(text) + 1 + _POINTER


def _bytes(text: str) -> int:
    return len(text.encode())
