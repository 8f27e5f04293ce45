"""Starting the gang: every rank's command is computed first, then handed to all agents at once."""

import secrets as randomness
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cloudgpu.errors import UsageError
from cloudgpu.launch.launchers import launcher
from cloudgpu.launch.ports import gang_port, master_port
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.remote.command import Command
from cloudgpu.remote.fanout import all_or_raise, on_all
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job
from cloudgpu.run.stage import Staged


def new_gang_token() -> str:
    """A secret that only the agents of one run share."""
    return randomness.token_hex(32)


def launches(job: Job, agents: Sequence[Agent], staged: Staged) -> tuple[NodeLaunch, ...]:
    """Every rank's command and environment; nothing is started.

    Raises:
        RecipeError: The command names an unknown placeholder.
        UsageError: Unknown launcher.
    """
    home = agents[0].home
    checkpoint = job.recipe.checkpoint
    context = LaunchContext(
        run_id=job.run_id,
        workdir=job.workdir(home),
        interpreter=staged.interpreter,
        master_port=master_port(job.run_id),
        data=staged.data,
        outputs=f"{job.workdir(home)}/outputs",
        checkpoint="" if checkpoint is None else f"{job.workdir(home)}/{checkpoint.path}",
    )
    return launcher(job.recipe.launch.launcher)(job.recipe, job.inventory, context)


def secret_values(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The values of the recipe's secrets, from the caller's environment.

    Raises:
        UsageError: One is not set.
    """
    missing = [name for name in names if name not in environ]
    if missing:
        message = f"the recipe needs secrets that are not in the environment: {', '.join(missing)}"
        raise UsageError(message, hint=f"export {missing[0]}=... before the command")
    return {name: environ[name] for name in names}


def start(job: Job, agents: Sequence[Agent], gang: Sequence[NodeLaunch], secrets: Mapping[str, str]) -> None:
    """Hand every agent its ranks. Sending it again for the same run changes nothing.

    Raises:
        RemoteCommandError: An agent refused; the node is named.
        ConnectError: A node cannot be reached.
    """
    orders = {node.node_index: node for node in gang}
    by_index = {agent.host.node.index: agent for agent in agents}

    def order(index: int) -> dict[str, Any]:
        agent = by_index[index]
        request = _request(job, agent, orders[index], secrets)
        agent.host.run(Command("mkdir", "-p", f"{job.workdir(agent.home)}/outputs"))
        return agent.ask("start", request)

    all_or_raise(on_all([agent.host for agent in agents], lambda host: order(host.node.index)))


def _request(job: Job, agent: Agent, launch: NodeLaunch, secrets: Mapping[str, str]) -> dict[str, Any]:
    return {
        "run_id": job.run_id,
        "run_dir": job.run_dir(agent.home),
        "workdir": job.workdir(agent.home),
        "node_index": launch.node_index,
        "ranks": [
            {"rank": rank.rank, "local_rank": rank.local_rank, "argv": list(rank.argv), "env": dict(rank.env)}
            for rank in launch.ranks
        ],
        "secrets": dict(secrets),
        "gang": {
            "head_address": job.inventory.head.private_address,
            "port": gang_port(job.run_id),
            "token": job.gang_token,
            "nodes": len(job.inventory.nodes),
        },
        "grace_s": int(job.recipe.checkpoint.grace) if job.recipe.checkpoint else 10,
    }


def command_line(launch: NodeLaunch) -> str:
    """The first rank's command, for people."""
    return shlex.join(launch.ranks[0].argv)
