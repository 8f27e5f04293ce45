"""Reject text that cannot be passed to a node, and ports and environment variables that cloudgpu reserves.

A NUL character ends every argument, variable and file name in Linux, and an unpaired surrogate has no UTF-8 form.
Other control characters do not belong in names, paths and URLs; newlines and tabs are allowed in commands, values
and descriptions.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu import bounds
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.text import printable

RUN_PORTS: Final = range(20000, 32000)
"""TCP ports for the rendezvous (first half) and for the connections between the agents of a run (second half).

The range is below Linux's ephemeral ports (32768-60999), which outgoing connections could occupy at any time.
"""

_EVERY: Final = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "CLOUDGPU_RUN_ID",
        "CLOUDGPU_RANK",
        "CLOUDGPU_WORLD_SIZE",
        "CLOUDGPU_NODE_RANK",
        "CLOUDGPU_NUM_NODES",
        "CLOUDGPU_NODE_IPS",
        "CLOUDGPU_GPUS_PER_NODE",
        "CLOUDGPU_OUTPUTS",
        "CLOUDGPU_CHECKPOINT",
    }
)
_TORCHRUN: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
)
_PS_LITE: Final = frozenset(
    {
        "DMLC_ROLE",
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_NODE_HOST",
    }
)
_ROLE: Final = frozenset({"CLOUDGPU_ROLE"})

LAUNCHER_VARIABLES: Final[Mapping[str, frozenset[str]]] = {
    "torchrun": _EVERY | _TORCHRUN,
    "mpirun": _EVERY,
    "deepspeed": _EVERY,
    "kvstore": _EVERY | _ROLE | _PS_LITE,
    "tf-config": _EVERY | _ROLE | {"TF_CONFIG"},
    "each-node": _EVERY,
    "head-only": _EVERY,
    "service": _EVERY,
}
"""Launcher -> variables that cloudgpu or the launcher sets for every rank, so that a recipe must not set them."""


_PROSE: Final = frozenset({"description", "command", "run", "setup", "pattern", "on", "source"})
"""Names of fields that may contain several lines, in any section."""
_VALUES: Final = frozenset({"env", "params"})
"""Mappings whose values may contain several lines."""


def text_problems(value: object, path: FieldPath = ()) -> Iterator[Problem]:
    """Yield a problem for every text, field name or whole number in a recipe that cannot be passed to a node."""
    if isinstance(value, dict):
        for name, item in value.items():
            fault = bounds.text_fault(name)
            problem = Problem((*path, printable(name)), f"invalid name: {fault}")
            yield from [problem] if fault else text_problems(item, (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from text_problems(item, (*path, index))
    else:
        message = _fault(value, path)
        if message:
            yield Problem(path, message)


def allows_newlines(path: FieldPath) -> bool:
    """Return True if the text of this field may contain newlines and tabs."""
    return bool(path) and (path[-1] in _PROSE or (len(path) > 1 and path[-2] in _VALUES))


def _fault(value: object, path: FieldPath) -> str:
    if isinstance(value, int) and abs(value) > bounds.MAX_COUNT:
        return f"expected a whole number of at most {bounds.MAX_COUNT}"
    if not isinstance(value, str):
        return ""
    fault = bounds.text_fault(value, lines=allows_newlines(path))
    if fault:
        return fault
    size = len(value.encode())
    if size > bounds.MAX_ARGUMENT_BYTES:
        return f"{size:,} bytes; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,} in one argument; use a file"
    return ""
