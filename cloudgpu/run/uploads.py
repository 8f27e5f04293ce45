"""Outputs in S3: every node brings its own there by its role when the run has ended, also where nobody watches."""

from collections.abc import Sequence
from typing import Any, Final

from cloudgpu.errors import CloudGpuError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, number
from cloudgpu.run.checkpoints import bucket_request, not_sent
from cloudgpu.run.each import each
from cloudgpu.run.files import Services
from cloudgpu.run.job import Job
from cloudgpu.ssh.fanout import on_all
from cloudgpu.ssh.transfer.patterns import regexes
from cloudgpu.text import size_text

_NAME: Final = "outputs"
"""How the agent tells this upload from that of checkpoints."""


def destination(recipe: Recipe, run_id: str) -> str:
    """Where a run's outputs go beside this machine; empty for nowhere."""
    return (recipe.outputs_to or "").replace("{run}", run_id)


def prepare(job: Job, agents: Sequence[Agent], services: Services) -> None:
    """Leave a process on every node that brings its outputs to S3 when the run has ended.

    Raises:
        RemoteCommandError: A node's role gives it no keys.
    """
    to = destination(job.recipe, job.run_id)
    if not to:
        return
    service = services(to)

    def ask(agent: Agent) -> None:
        index = agent.host.node.index
        place = to if index == 0 else f"{to.rstrip('/')}/node-{index}"
        request = {
            "name": _NAME,
            "run_dir": job.run_dir(agent.home),
            "source": job.workdir(agent.home),
            "patterns": regexes(job.recipe.outputs),
            "at_end": True,
            **bucket_request(place, agent, service),
        }
        agent.ask("keep", request)

    each(agents, ask)


def uploaded(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Wait until the outputs are there: what there is, in words, and a line for each node whose are not."""
    to = destination(job.recipe, job.run_id)
    if not to:
        return "", ()
    by_index = {agent.host.node.index: agent for agent in agents}

    def ask(index: int) -> dict[str, Any]:
        agent = by_index[index]
        return agent.ask("kept", {"name": _NAME, "run_dir": job.run_dir(agent.home)})

    answers = on_all([agent.host for agent in agents], lambda host: ask(host.node.index))
    failures = tuple(one.message for one in answers.values() if isinstance(one, CloudGpuError))
    there = [one for one in answers.values() if not isinstance(one, CloudGpuError)]
    files = sum(number(one, "files") for one in there)
    if not files:
        return ("" if failures else f"no output was there to be brought to {to}"), failures
    text = f"outputs: {files} files, {size_text(sum(number(one, 'bytes') for one in there))}, at {to}"
    return text + "".join(map(not_sent, there)), failures
