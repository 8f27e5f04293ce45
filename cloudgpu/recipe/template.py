"""Turn command templates like `train.py --epochs {epochs}` into argument vectors.

The command is split before placeholders are filled, so a value with spaces or quotes stays one argument and can
never become a second command.

A script is not a template, because text substituted into a shell script could become part of its syntax.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.problem import suggestion
from cloudgpu.recipe.schema import Recipe, Scalar

RUN_VARIABLES: Final[Mapping[str, str]] = {
    "run": "CLOUDGPU_RUN_ID",
    "outputs": "CLOUDGPU_OUTPUTS",
    "checkpoint": "CLOUDGPU_CHECKPOINT",
    "node_rank": "CLOUDGPU_NODE_RANK",
    "num_nodes": "CLOUDGPU_NUM_NODES",
    "head_address": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}
"""Placeholders whose values every rank has in its environment, whether it runs a command or a script."""
_SECTIONS: Final = frozenset({"data", "storage", "service"})
RUN_NAMES = ("run", "outputs", "node_rank", "num_nodes", "head_address", "master_port")
SERVICE_NAMES = ("service.port", "service.address")
_HOSTFILE_OF = frozenset({"mpirun", "deepspeed"})
_PIECE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}|[{}]")
_SHELL_TOKENS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})


def variable_name(placeholder: str) -> str:
    """Return the environment variable that has a placeholder's value in a script."""
    if placeholder in RUN_VARIABLES:
        return RUN_VARIABLES[placeholder]
    section = placeholder.partition(".")[0]
    named = placeholder if section in _SECTIONS or placeholder == "hostfile" else f"param.{placeholder}"
    return "CLOUDGPU_" + named.upper().replace(".", "_").replace("-", "_")


def argv(command: str, values: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Fill in a command's placeholders and return its arguments. `{{` and `}}` become braces; null becomes empty."""
    messages = tuple(placeholder_problems(command, values))
    if messages:
        message = f"launch.command: {messages[0]}"
        problem_lines = [f"launch.command: {problem}" for problem in messages]
        raise RecipeError(message, problems=problem_lines, hint="fix the command, or the parameters it uses")
    return tuple(_filled(token, values) for token in shlex.split(command))


def placeholders(recipe: Recipe) -> tuple[str, ...]:
    """Return the placeholders that this recipe's command may use."""
    checkpoint = ("checkpoint",) if recipe.checkpoint else ()
    data = (f"data.{dataset.name}" for dataset in recipe.data)
    storage = (f"storage.{storage.name}" for storage in recipe.storage)
    hostfile = ("hostfile",) if recipe.launch.launcher in _HOSTFILE_OF else ()
    service = SERVICE_NAMES if recipe.launch.service else ()
    return (*recipe.params, *data, *storage, *RUN_NAMES, *checkpoint, *hostfile, *service)


def placeholder_problems(command: str, names: Mapping[str, Scalar] | tuple[str, ...]) -> Iterator[str]:
    """Yield the problems of a command, given the placeholders that it may use."""
    try:
        tokens = shlex.split(command)
    except ValueError as err:
        yield f"cannot split the command into arguments: {str(err).lower()}"
        return
    if not tokens:
        yield "expected a command, got nothing"
    for token in tokens:
        if token in _SHELL_TOKENS:
            yield f"the command runs without a shell, so {token} would be an argument; write bash -c '...'"
        yield from _unknown(token, tuple(names))


def _unknown(token: str, names: tuple[str, ...]) -> Iterator[str]:
    for match in _PIECE.finditer(token):
        if match[1] is not None and match[1] not in names:
            hint = suggestion(match[1], names) or f"; known placeholders: {', '.join(names)}"
            yield f"unknown placeholder {{{match[1]}}}{hint}"
        elif match[0] in ("{", "}"):
            yield f"single {match[0]} in {token}; write {match[0] * 2} for a literal {match[0]}"


def _filled(token: str, values: Mapping[str, Scalar]) -> str:
    return _PIECE.sub(lambda match: match[0][0] if match[1] is None else format_value(values[match[1]]), token)


def format_value(value: Scalar) -> str:
    """Format a value as an argument: `true` or `false` for booleans, empty for null."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
