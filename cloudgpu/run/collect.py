"""The end of a run on its nodes: what the recipe asked for comes back, checkpoints are kept, mounts are taken down."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import CloudGpuError
from cloudgpu.remote.fanout import on_all
from cloudgpu.run.agent import Agent
from cloudgpu.run.checkpoints import kept
from cloudgpu.run.data import release
from cloudgpu.run.job import Job
from cloudgpu.run.uploads import uploaded


@dataclass(frozen=True)
class Collected:
    """What came back, and what did not.

    Attributes:
        files: Paths below the run's outputs directory.
        missing: Patterns of the recipe that no node had.
        failures: Nodes whose outputs could not be fetched or brought to S3, one line each.
        gone: Nodes that have ended, and what they held with them, one line each.
        remarks: Where checkpoints and outputs are, and what could not be taken down.
    """

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def collect(job: Job, agents: Sequence[Agent], to: Path) -> Collected:
    """Fetch the outputs: the head's go to `to`, another node's to `to/node-N` where it has any of its own.

    A node that cannot be read is a line in `failures`, never an exception: what the others have must still come.
    """
    checkpoint, unkept = _kept(job, agents)
    remark, unsent = uploaded(job, agents)
    files, failures = _fetched(job, agents, to)
    remarks = (*filter(None, (checkpoint, remark)), *release(job, agents))
    lost = (*failures, *unkept, *unsent)
    missing = () if failures else tuple(pattern for pattern in job.recipe.outputs if not _matched(pattern, files))
    return Collected(tuple(files), missing, lost, remarks=remarks)


def _kept(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Where the checkpoints are, and what is not there."""
    head = next((agent for agent in agents if agent.host.node.index == 0), None)
    try:
        return ("" if head is None else kept(job, head)), ()
    except CloudGpuError as err:
        return "", (err.message,)


def _fetched(job: Job, agents: Sequence[Agent], to: Path) -> tuple[list[str], list[str]]:
    patterns = list(job.recipe.outputs)
    by_index = {agent.host.node.index: agent for agent in agents}

    def fetch(index: int) -> list[str]:
        agent = by_index[index]
        target = to if index == 0 else to / f"node-{index}"
        return agent.host.fetch_tree(job.workdir(agent.home), patterns, target)

    files: list[str] = []
    failures: list[str] = []
    answers = on_all([agent.host for agent in agents], lambda host: fetch(host.node.index)) if patterns else {}
    for index, answer in answers.items():
        if isinstance(answer, CloudGpuError):
            failures.append(f"node {index}: {answer.message}")
        else:
            files += [name if index == 0 else f"node-{index}/{name}" for name in answer]
    return files, failures


def _matched(pattern: str, files: Sequence[str]) -> bool:
    own = [Path(*Path(name).parts[1:]) if name.startswith("node-") else Path(name) for name in files]
    wanted = pattern.rstrip("/")
    return any(path.match(wanted) or wanted in (str(path), *map(str, path.parents)) for path in own)
