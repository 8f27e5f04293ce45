"""Environment variables that give a shell script of a recipe what a command gets through placeholders.

A script is not a template, because text substituted into a shell script could become part of its syntax.
"""

from collections.abc import Mapping
from typing import Final

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


def variable_name(placeholder: str) -> str:
    """Return the environment variable that has a placeholder's value in a script."""
    if placeholder in RUN_VARIABLES:
        return RUN_VARIABLES[placeholder]
    section = placeholder.partition(".")[0]
    named = placeholder if section in _SECTIONS or placeholder == "hostfile" else f"param.{placeholder}"
    return "CLOUDGPU_" + named.upper().replace(".", "_").replace("-", "_")
