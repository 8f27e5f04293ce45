"""The end of a run on its nodes: what the recipe asked for comes back, checkpoints are kept, mounts are taken down."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cloudgpu.errors import CloudGpuError
from cloudgpu.run.agent import Agent
from cloudgpu.run.checkpoints import kept
from cloudgpu.run.data import release
from cloudgpu.run.job import Job
from cloudgpu.run.uploads import uploaded
from cloudgpu.ssh.fanout import on_all
from cloudgpu.ssh.transfer.patterns import matching
from cloudgpu.ssh.transfer.receive import Skipped
from cloudgpu.text import printable

_NAMED: Final = 20
"""Skipped files that are named to a person; JSON names them all."""


@dataclass(frozen=True)
class SkippedOutput:
    """Something on one node that matched the recipe's outputs and was not fetched."""

    node: int
    path: str
    reason: str
    lost: bool = False

    @property
    def text(self) -> str:
        """One line for a person."""
        return printable(f"node {self.node}: {self.path + ': ' if self.path else ''}{self.reason}")

    def as_json(self) -> dict[str, Any]:
        """Its documented form."""
        return {"node": self.node, "path": self.path, "reason": self.reason}


@dataclass(frozen=True)
class Collected:
    """What came back, and what did not.

    Attributes:
        files: Paths below the run's outputs directory.
        missing: Patterns of the recipe that no node had.
        failures: Nodes whose outputs could not be fetched or brought to S3, and outputs that could not be read, one
            line each.
        gone: Nodes that have ended, and what they held with them, one line each.
        remarks: Where checkpoints and outputs are, and what could not be taken down.
        skipped: What matched and was not fetched.
    """

    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    skipped: tuple[SkippedOutput, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person is told about it, one sentence each."""
        named = [f"not fetched: {one.text}" for one in self.skipped if not one.lost]
        more = [f"not fetched: {len(named) - _NAMED} more"] if len(named) > _NAMED else []
        missing = (f"no node had {pattern}" for pattern in self.missing)
        return (*missing, *self.remarks, *named[:_NAMED], *more, *self.gone, *self.failures)


def collect(job: Job, agents: Sequence[Agent], to: Path) -> Collected:
    """Fetch the outputs: the head's go to `to`, another node's to `to/node-N` where it has any of its own.

    A node that cannot be read is a line in `failures`, never an exception: what the others have must still come.
    """
    checkpoint, unkept = _kept(job, agents)
    remark, unsent = uploaded(job, agents)
    fetched = _fetched(job, agents, to)
    remarks = (*filter(None, (checkpoint, remark)), *release(job, agents))
    here = [name for name in fetched.files if (to / name).exists()]  # a link to what was not fetched is no output
    unmatched = [pattern for pattern in job.recipe.outputs if not _matched(pattern, here)]
    in_vain = {pattern: found for pattern in unmatched if (found := _skipped_by(pattern, fetched.skipped))}
    unreadable = [one.text for one in fetched.skipped if one.lost]
    empty = [f"nothing of {pattern} could be fetched: {one.text}" for pattern, one in in_vain.items() if not one.lost]
    missing = () if fetched.failures else tuple(pattern for pattern in unmatched if pattern not in in_vain)
    lost = (*fetched.failures, *unreadable, *empty, *unkept, *unsent)
    return Collected(tuple(fetched.files), missing, lost, remarks=remarks, skipped=tuple(fetched.skipped))


def _skipped_by(pattern: str, skipped: Sequence[SkippedOutput]) -> SkippedOutput | None:
    """The first thing that a pattern matched and that was not fetched."""
    return next((one for one in skipped if one.path and matching([one.path.rstrip("/")], [pattern])), None)


def _kept(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Where the checkpoints are, and what is not there."""
    head = next((agent for agent in agents if agent.host.node.index == 0), None)
    try:
        return ("" if head is None else kept(job, head)), ()
    except CloudGpuError as err:
        return "", (err.message,)


@dataclass(frozen=True)
class _Fetched:
    files: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[SkippedOutput] = field(default_factory=list)


def _fetched(job: Job, agents: Sequence[Agent], to: Path) -> _Fetched:
    patterns = list(job.recipe.outputs)
    by_index = {agent.host.node.index: agent for agent in agents}

    def fetch(index: int) -> tuple[list[str], list[SkippedOutput]]:
        agent = by_index[index]
        target = to if index == 0 else to / f"node-{index}"
        skipped: list[Skipped] = []
        names = agent.host.fetch_tree(job.workdir(agent.home), patterns, target, skipped.append)
        named = [SkippedOutput(index, one.path, one.reason, one.lost) for one in skipped]
        return names, [*named, *_dangling(index, target, names)]

    fetched = _Fetched()
    answers = on_all([agent.host for agent in agents], lambda host: fetch(host.node.index)) if patterns else {}
    for index, answer in answers.items():
        if isinstance(answer, CloudGpuError):
            fetched.failures.append(f"node {index}: {answer.message}")
        else:
            fetched.files.extend(name if index == 0 else f"node-{index}/{name}" for name in answer[0])
            fetched.skipped.extend(answer[1])
    return fetched


def _dangling(index: int, target: Path, names: Sequence[str]) -> Iterator[SkippedOutput]:
    """Name the targets of links that arrived without them: they match no pattern, or could not be fetched."""
    for name in names:
        place = target / name
        if place.is_symlink() and not place.exists():
            missing = os.path.normpath(Path(name).parent / place.readlink())
            yield SkippedOutput(index, name, f"link to {missing}, which was not fetched with it")


def _matched(pattern: str, files: Sequence[str]) -> bool:
    own = [Path(*Path(name).parts[1:]) if name.startswith("node-") else Path(name) for name in files]
    wanted = pattern.rstrip("/")
    return any(path.match(wanted) or wanted in (str(path), *map(str, path.parents)) for path in own)
