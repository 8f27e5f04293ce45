"""Command templates: `train.py --epochs {epochs}` to an argument vector.

The command is split first and filled afterwards, token by token, so a value with spaces or quotes stays one argument
and can never become a second command.
"""

import re
import shlex
from collections.abc import Iterator, Mapping

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.recipe.schema import Recipe, Scalar

RUN_NAMES = ("run", "outputs", "node_rank", "num_nodes", "head_address", "master_port")
SERVICE_NAMES = ("service.port", "service.address")
_HOSTFILE_OF = frozenset({"mpirun", "deepspeed"})

_PIECE = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}|[{}]")
_SHELL_TOKENS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})


def argv(command: str, values: Mapping[str, Scalar]) -> tuple[str, ...]:
    """The arguments of a command; `{name}` is filled, `{{` and `}}` are braces. Null becomes an empty argument.

    Raises:
        RecipeError: The command cannot be split, or holds a name that `values` lacks.
    """
    found = tuple(problems(command, values))
    if found:
        message = f"launch.command: {found[0]}"
        problems_found = [f"launch.command: {problem}" for problem in found]
        raise RecipeError(message, problems=problems_found, hint="correct the command, or the parameters it names")
    return tuple(_filled(token, values) for token in shlex.split(command))


def placeholders(recipe: Recipe) -> tuple[str, ...]:
    """The names that this recipe's command may use."""
    checkpoint = ("checkpoint",) if recipe.checkpoint else ()
    data = (f"data.{one.name}" for one in recipe.data)
    storage = (f"storage.{one.name}" for one in recipe.storage)
    hostfile = ("hostfile",) if recipe.launch.launcher in _HOSTFILE_OF else ()
    service = SERVICE_NAMES if recipe.launch.service else ()
    return (*recipe.params, *data, *storage, *RUN_NAMES, *checkpoint, *hostfile, *service)


def problems(command: str, names: Mapping[str, Scalar] | tuple[str, ...]) -> Iterator[str]:
    """What is wrong with a command that may use these names."""
    try:
        tokens = shlex.split(command)
    except ValueError as err:
        yield f"cannot be split into arguments: {str(err).lower()}"
        return
    if not tokens:
        yield "expected a command, got nothing"
    for token in tokens:
        if token in _SHELL_TOKENS:
            yield f"no shell runs it, so {token} would be an argument; write bash -c '...'"
        yield from _unknown(token, tuple(names))


def _unknown(token: str, names: tuple[str, ...]) -> Iterator[str]:
    for match in _PIECE.finditer(token):
        if match[1] is not None and match[1] not in names:
            known = suggestion(match[1], names) or f"; known here: {', '.join(names)}"
            yield f"unknown placeholder {{{match[1]}}}{known}"
        elif match[0] in ("{", "}"):
            yield f"a single {match[0]} in {token}; write {match[0] * 2} for the character"


def _filled(token: str, values: Mapping[str, Scalar]) -> str:
    return _PIECE.sub(lambda match: match[0][0] if match[1] is None else written(values[match[1]]), token)


def written(value: Scalar) -> str:
    """A value as an argument: `true` and `false` for booleans, nothing for null."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
