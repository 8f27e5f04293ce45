"""Upload outputs to S3. Every node uploads its own outputs using its IAM role, even if the caller has disconnected."""

import re
from collections.abc import Sequence
from typing import Final

from cloudgpu.errors import CloudGpuError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, count_field, run_on_agents
from cloudgpu.run.data.checkpoints import bucket_request, skipped_files_clause
from cloudgpu.run.data.files import Services
from cloudgpu.run.job import Job
from cloudgpu.ssh.fanout import run_on_all
from cloudgpu.ssh.transfer.patterns import glob_regexes
from cloudgpu.text import plural, size_text

_NAME: Final = "outputs"
"""Name that distinguishes this upload from the checkpoint upload in the agent."""
_NODE_DIRECTORY: Final = r"(?i)node-(?:0|[1-9][0-9]*)(?:/|\Z)"
"""Pattern of the paths that are in the directory of a node. Some file systems ignore the case of names."""


def place_on_head(path: str) -> str:
    """Return the path below the outputs for a path on the head node of several nodes.

    The head node's outputs have no directory of their own, and `node-1` and so on are the directories of the other
    nodes. Outputs of the head node with such a name are therefore stored in `node-0`.
    """
    return f"node-0/{path}" if re.match(_NODE_DIRECTORY, path) else path


def outputs_destination(recipe: Recipe, run_id: str) -> str:
    """Return the S3 URI for the run's outputs, or an empty string."""
    return (recipe.outputs_to or "").replace("{run}", run_id)


def start_uploads(job: Job, agents: Sequence[Agent], services: Services) -> None:
    """Start a process on every node that uploads the node's outputs to S3 after the run."""
    to = outputs_destination(job.recipe, job.run_id)
    if not to:
        return
    service = services(to)

    def start_upload(agent: Agent) -> None:
        index = agent.host.node.index
        prefix = to if index == 0 else f"{to.rstrip('/')}/node-{index}"
        request = {
            "name": _NAME,
            "run_dir": job.run_dir(agent.home),
            "source": job.workdir(agent.home),
            "patterns": glob_regexes(job.recipe.outputs),
            "at_end": True,
            "below_node_0": _NODE_DIRECTORY if index == 0 and len(job.inventory.nodes) > 1 else "",
            **bucket_request(prefix, agent, service),
        }
        agent.ask("keep", request)

    run_on_agents(agents, start_upload)


def finish_uploads(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Wait for the uploads. Return a summary and one message per node that failed."""
    to = outputs_destination(job.recipe, job.run_id)
    if not to:
        return "", ()
    by_index = {agent.host.node.index: agent for agent in agents}

    def wait_for_upload(index: int) -> tuple[int, int, str]:
        agent = by_index[index]
        answer = agent.ask("kept", {"name": _NAME, "run_dir": job.run_dir(agent.home)})
        return count_field(answer, "files"), count_field(answer, "bytes"), skipped_files_clause(answer)

    answers = run_on_all([agent.host for agent in agents], lambda host: wait_for_upload(host.node.index))
    failures = tuple(answer.message for answer in answers.values() if isinstance(answer, CloudGpuError))
    uploads = [answer for answer in answers.values() if not isinstance(answer, CloudGpuError)]
    files = sum(count for count, _, _ in uploads)
    if not files:
        return ("" if failures else f"there were no outputs to upload to {to}"), failures
    text = f"outputs: {plural(files, 'file')}, {size_text(sum(size for _, size, _ in uploads))}, at {to}"
    return text + "".join(clause for _, _, clause in uploads), failures
