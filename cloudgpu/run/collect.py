"""Bringing back what the recipe asked for, from every node that has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import CloudGpuError
from cloudgpu.remote.fanout import on_all
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job


@dataclass(frozen=True)
class Collected:
    """What came back, and what did not.

    Attributes:
        files: Paths below the run's outputs directory.
        missing: Patterns of the recipe that no node had.
        failures: Nodes whose outputs could not be fetched, one line each.
        gone: Nodes that have ended, and what they held with them, one line each.
    """

    files: tuple[str, ...]
    missing: tuple[str, ...]
    failures: tuple[str, ...]
    gone: tuple[str, ...] = ()


def collect(job: Job, agents: Sequence[Agent], to: Path) -> Collected:
    """Fetch the outputs: the head's go to `to`, another node's to `to/node-N` where it has any of its own.

    A node that cannot be read is a line in `failures`, never an exception: what the others have must still come.
    """
    patterns = list(job.recipe.outputs)
    if not patterns:
        return Collected((), (), ())
    by_index = {agent.host.node.index: agent for agent in agents}

    def fetch(index: int) -> list[str]:
        agent = by_index[index]
        target = to if index == 0 else to / f"node-{index}"
        return agent.host.fetch_tree(job.workdir(agent.home), patterns, target)

    answers = on_all([agent.host for agent in agents], lambda host: fetch(host.node.index))
    files: list[str] = []
    failures: list[str] = []
    for index, answer in answers.items():
        if isinstance(answer, CloudGpuError):
            failures.append(f"node {index}: {answer.message}")
        else:
            files += [name if index == 0 else f"node-{index}/{name}" for name in answer]
    missing = () if failures else tuple(pattern for pattern in patterns if not _matched(pattern, files))
    return Collected(tuple(files), missing, tuple(failures))


def _matched(pattern: str, files: Sequence[str]) -> bool:
    own = [Path(*Path(name).parts[1:]) if name.startswith("node-") else Path(name) for name in files]
    wanted = pattern.rstrip("/")
    return any(path.match(wanted) or wanted in (str(path), *map(str, path.parents)) for path in own)
