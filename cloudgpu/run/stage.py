"""Staging: work directory, datasets and Python environment on every node, in parallel, before any rank starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.errors import RemoteCommandError
from cloudgpu.recipe.schema import Data
from cloudgpu.remote.base import Host
from cloudgpu.remote.command import Command, Raw
from cloudgpu.remote.fanout import all_or_raise, on_all
from cloudgpu.remote.tree import files_to_send
from cloudgpu.run.agent import Agent
from cloudgpu.run.files import Files, RemoteFile
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note, Report

_T = TypeVar("_T")
_STEP = 1024
_SHOWN = 5
_FILES_AN_ORDER = 2000


@dataclass(frozen=True)
class Staged:
    """What staging left.

    Attributes:
        interpreters: Node index -> the Python that has what the recipe requires.
        data: Dataset name -> its directory, without the root of a node that has one.
    """

    interpreters: Mapping[int, str]
    data: Mapping[str, str]
    sent_bytes: int
    data_bytes: int
    environment_built: bool


def stage(
    job: Job, agents: Sequence[Agent], files: Files, base: Path, report: Report, *, sent_bytes: int = 0
) -> Staged:
    """Fetch the datasets, find or build the environment; the work directory was sent before, with `send_workdir`.

    Raises:
        RemoteCommandError: A node could not fetch, verify or build something; it is named.
        ConnectError: A node cannot be reached.
    """
    data_bytes = sum(_stage_data(dataset, agents, base, files, report) for dataset in job.recipe.data)
    interpreters, built = _environment(job, agents, report)
    data = {dataset.name: str(dataset.to) for dataset in job.recipe.data}
    return Staged(interpreters, data, sent_bytes, data_bytes, built)


def _each(agents: Sequence[Agent], do: Callable[[Agent], _T]) -> dict[int, _T]:
    by_index = {agent.host.node.index: agent for agent in agents}
    return all_or_raise(on_all([agent.host for agent in agents], lambda host: do(by_index[host.node.index])))


def send_workdir(job: Job, agents: Sequence[Agent], base: Path, report: Report) -> int:
    """Send what changed since the last run, and give this run a copy of its own; bytes sent.

    Two runs of one recipe may not do so on the same nodes at once: one could copy what the other has just sent.

    Raises:
        UsageError: The work directory cannot be read.
        RemoteCommandError: A node could not take it; it is named.
        ConnectError: A node cannot be reached.
    """
    if job.recipe.workdir is None:
        _each(agents, lambda agent: agent.host.run(Command("mkdir", "-p", job.workdir(agent.home))))
        return 0
    root = (base / job.recipe.workdir).resolve()
    listing = files_to_send(root)
    report(Note(f"work directory {root.name}: {len(listing.files)} files, {size_text(listing.bytes)}"))
    for skipped in listing.skipped[:_SHOWN]:
        report(Note(f"not sent: {skipped.path}: {skipped.reason}"))
    if len(listing.skipped) > _SHOWN:
        report(Note(f"not sent: {len(listing.skipped) - _SHOWN} more"))

    def send(agent: Agent) -> int:
        cache, work = job.cache(agent.home), job.workdir(agent.home)
        sent = agent.host.send_tree(root, listing.files, cache)
        agent.host.run(Command("mkdir", "-p", cache, work))
        # A copy that shares blocks where the file system can; links would let a run change what the next one gets.
        agent.host.run(Command("cp", "-a", "--reflink=auto", f"{cache}/.", work))
        return sent

    return sum(_each(agents, send).values())


def _stage_data(dataset: Data, agents: Sequence[Agent], base: Path, files: Files, report: Report) -> int:
    listed = files(dataset)
    total = sum(file.size for file in listed)
    report(Note(f"data {dataset.name}: {len(listed)} files, {size_text(total)}, to {dataset.to} on every node"))
    if dataset.source.startswith("s3://"):
        moved = _fetch(dataset, agents, listed, report)
    else:
        moved = _send_data(dataset, agents, base, listed)
    report(Note(f"data {dataset.name}: {size_text(moved)} moved{_verified(listed)}"))
    return moved


def _verified(listed: Sequence[RemoteFile]) -> str:
    return ", checksums verified" if listed and all(file.sha256 for file in listed) else ""


def _fetch(dataset: Data, agents: Sequence[Agent], listed: Sequence[RemoteFile], report: Report) -> int:
    """Download on every node, some thousand files an order: each carries an address of up to two thousand bytes."""

    def fetch(agent: Agent) -> int:
        target = f"{agent.root}{dataset.to}"
        _own_directory(agent.host, target)
        moved = 0
        for start in range(0, len(listed), _FILES_AN_ORDER):
            batch = listed[start : start + _FILES_AN_ORDER]
            moved += int(agent.ask("fetch", {"files": [_order(file, target) for file in batch]})["bytes"])
            if len(listed) > _FILES_AN_ORDER:
                done = min(start + _FILES_AN_ORDER, len(listed))
                report(Note(f"data {dataset.name}: {done} of {len(listed)} files", agent.host.node.index))
        return moved

    return sum(_each(agents, fetch).values())


def _send_data(dataset: Data, agents: Sequence[Agent], base: Path, listed: Sequence[RemoteFile]) -> int:
    source = (base / dataset.source).resolve()
    root = source if source.is_dir() else source.parent

    def send(agent: Agent) -> int:
        target = f"{agent.root}{dataset.to}"
        _own_directory(agent.host, target)
        return agent.host.send_tree(root, [file.relative for file in listed], target)

    return sum(_each(agents, send).values())


def _own_directory(host: Host, path: str) -> None:
    """Make a directory that the login user may write, also where only root may: `/data` on a real node."""
    if not host.try_run(Command("mkdir", "-p", path, Raw("&& test -w"), path)).ok:
        make = ("sudo", "-n", "mkdir", "-p", path)
        host.run(Command(*make, Raw('&& sudo -n chown "$(id -u):$(id -g)"'), path))


def _order(file: RemoteFile, target: str) -> dict[str, Any]:
    return {"url": file.url, "path": f"{target}/{file.relative}", "size": file.size, "sha256": file.sha256}


def _environment(job: Job, agents: Sequence[Agent], report: Report) -> tuple[dict[int, str], bool]:
    wanted = job.recipe.environment.python
    if wanted is None:
        return {agent.host.node.index: "python3" for agent in agents}, False
    # A node without a GPU takes the build that its own settings name: PyTorch's index is not reachable everywhere.
    backend = None if job.inventory.head.simulated else wanted.torch_backend
    request = {"requirements": list(wanted.requirements), "version": wanted.version, "torch_backend": backend}

    def build(agent: Agent) -> tuple[str, bool]:
        answer = agent.ask("env", request, lambda line: _relay(line, agent, report))
        if not isinstance(answer.get("interpreter"), str):
            node = agent.host.node
            message = f"node {node.index} ({node.instance_id}): the agent named no interpreter"
            raise RemoteCommandError(message, hint="run the command again")
        return answer["interpreter"], bool(answer.get("built"))

    answers = _each(agents, build)
    return {index: path for index, (path, _) in answers.items()}, any(built for _, built in answers.values())


def _relay(line: Mapping[str, Any], agent: Agent, report: Report) -> None:
    if "progress" in line:
        report(Note(str(line["progress"]), agent.host.node.index))


def size_text(count: int) -> str:
    """`1.5 MiB`, for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} GiB"
