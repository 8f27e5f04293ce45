"""The `deepspeed` launcher: a command on the head node that starts the ranks on all nodes over SSH.

DeepSpeed's runner and similar runners read the nodes from a hostfile. They start `ssh` by name, directly or through
pdsh, even for the head node. The first `ssh` on their PATH is a wrapper that uses the run's key, ports and host keys.
"""

from cloudgpu.launch.command import rank_command
from cloudgpu.launch.environment import (
    process_variables,
    rank_environment,
    ranks_on,
    reject_reserved_variables,
    run_variables,
)
from cloudgpu.launch.inter_node_ssh import SSH_SHIM, hostfile, ssh_config, ssh_shim
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext, NodeFile, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe

STARTER = "deepspeed/with-ssh"
ENVIRONMENT = "deepspeed/environment"
"""File with the variables that DeepSpeed exports on every node.

DeepSpeed exports variables that are not in this file only if their names have certain prefixes, such as `PYTHON`.
"""
_PER_PROCESS = frozenset({"CLOUDGPU_RANK", "CLOUDGPU_NODE_RANK", "CLOUDGPU_GPUS_PER_NODE"})


def deepspeed(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node and the files that it needs. Agents on other nodes start no processes."""
    reject_reserved_variables(recipe)
    head = inventory.head
    slots = {node.private_address: ranks_on(recipe, node) for node in inventory.nodes}
    world = sum(slots.values())
    fixed = {**run_variables(inventory, ctx, world), **process_variables(inventory, head, 0)}
    shared = rank_environment(recipe, inventory, head, ctx, fixed, world)
    env = {
        **shared,
        "DS_ENV_FILE": f"{ctx.run_dir}/{ENVIRONMENT}",
        "PDSH_RCMD_TYPE": "ssh",
    }
    argv = (f"{ctx.run_dir}/{STARTER}", *rank_command(recipe, inventory, ctx))
    files = (
        hostfile(slots),
        ssh_config(inventory, ctx.run_dir),
        ssh_shim(ctx.run_dir),
        _starter(ctx.run_dir),
        _exported(shared),
    )
    reaches = tuple(node.index for node in inventory.nodes) if len(inventory.nodes) > 1 else ()
    first = NodeLaunch(head.index, (RankLaunch(0, 0, argv, env),), files, reaches)
    return (first, *(NodeLaunch(node.index, ()) for node in inventory.nodes[1:]))


def _starter(directory: str) -> NodeFile:
    """Return a script that executes the command with the `ssh` wrapper first on the PATH."""
    folder = f"{directory}/{SSH_SHIM}".rpartition("/")[0]
    return NodeFile(STARTER, f'#!/bin/sh\nPATH="{folder}:$PATH"; export PATH\nexec "$@"\n', 0o700)


def _exported(env: dict[str, str]) -> NodeFile:
    """Return the environment in DeepSpeed's format, one line per variable, without multi-line values."""
    lines = (f"{name}={value}\n" for name, value in env.items() if name not in _PER_PROCESS and "\n" not in value)
    return NodeFile(ENVIRONMENT, "".join(lines))
