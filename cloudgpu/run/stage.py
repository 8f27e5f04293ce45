"""Staging: work directory, datasets and Python environment on every node, in parallel, before any rank starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

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


@dataclass(frozen=True)
class Staged:
    """What staging left: where things are on the nodes (the same on all of them)."""

    interpreter: str
    data: Mapping[str, str]
    sent_bytes: int
    data_bytes: int
    environment_built: bool


def stage(job: Job, agents: Sequence[Agent], base: Path, files: Files, report: Report) -> Staged:
    """Send the work directory, fetch the datasets, find or build the environment.

    Raises:
        RemoteCommandError: A node could not fetch, verify or build something; it is named.
        ConnectError: A node cannot be reached.
    """
    sent = _send_workdir(job, agents, base, report)
    data_bytes, data = 0, {}
    for dataset in job.recipe.data:
        data[dataset.name] = f"{agents[0].root}{dataset.to}"
        if dataset.source.startswith("s3://"):
            data_bytes += _fetch(dataset, agents, files(dataset), report)
        else:
            data_bytes += _send_data(dataset, agents, base, report)
    interpreter, built = _environment(job, agents, report)
    return Staged(interpreter, data, sent, data_bytes, built)


def _each(agents: Sequence[Agent], do: Callable[[Agent], _T]) -> dict[int, _T]:
    by_index = {agent.host.node.index: agent for agent in agents}
    return all_or_raise(on_all([agent.host for agent in agents], lambda host: do(by_index[host.node.index])))


def _send_workdir(job: Job, agents: Sequence[Agent], base: Path, report: Report) -> int:
    if job.recipe.workdir is None:
        _each(agents, lambda agent: agent.host.run(Command("mkdir", "-p", job.workdir(agent.home))))
        return 0
    root = (base / job.recipe.workdir).resolve()
    listing = files_to_send(root)
    report(Note(f"work directory {root.name}: {len(listing.files)} files, {size_text(listing.bytes)}"))
    for skipped in listing.skipped[:5]:
        report(Note(f"not sent: {skipped}"))

    def send(agent: Agent) -> int:
        cache, work = job.cache(agent.home), job.workdir(agent.home)
        sent = agent.host.send_tree(root, listing.files, cache)
        agent.host.run(Command("mkdir", "-p", work))
        agent.host.run(Command("cp", "-a", f"{cache}/.", work))
        return sent

    return sum(_each(agents, send).values())


def _fetch(dataset: Data, agents: Sequence[Agent], files: Sequence[RemoteFile], report: Report) -> int:
    total = sum(file.size for file in files)
    report(Note(f"data {dataset.name}: {len(files)} files, {size_text(total)}, to {dataset.to} on every node"))

    def fetch(agent: Agent) -> int:
        target = f"{agent.root}{dataset.to}"
        _own_directory(agent.host, target)
        answer = agent.ask("fetch", {"files": [_order(file, target) for file in files]})
        return int(answer["bytes"])

    fetched = sum(_each(agents, fetch).values())
    report(Note(f"data {dataset.name}: {size_text(fetched)} moved, checksums verified"))
    return fetched


def _send_data(dataset: Data, agents: Sequence[Agent], base: Path, report: Report) -> int:
    root = (base / dataset.source).resolve()
    listing = files_to_send(root)
    report(Note(f"data {dataset.name}: {len(listing.files)} files, {size_text(listing.bytes)}, to {dataset.to}"))

    def send(agent: Agent) -> int:
        target = f"{agent.root}{dataset.to}"
        _own_directory(agent.host, target)
        return agent.host.send_tree(root, listing.files, target)

    return sum(_each(agents, send).values())


def _own_directory(host: Host, path: str) -> None:
    """Make a directory that the login user may write, also where only root may: `/data` on a real node."""
    if not host.try_run(Command("mkdir", "-p", path, Raw("&& test -w"), path)).ok:
        host.run(Command("sudo", "mkdir", "-p", path, Raw('&& sudo chown "$(id -u):$(id -g)"'), path))


def _order(file: RemoteFile, target: str) -> dict[str, Any]:
    return {"url": file.url, "path": f"{target}/{file.relative}", "size": file.size, "sha256": file.sha256}


def _environment(job: Job, agents: Sequence[Agent], report: Report) -> tuple[str, bool]:
    wanted = job.recipe.environment.python
    if wanted is None:
        return "python3", False
    request = {"requirements": list(wanted.requirements), "version": wanted.version}

    def build(agent: Agent) -> dict[str, Any]:
        return agent.ask("env", request, lambda line: _relay(line, agent, report))

    answers = _each(agents, build)
    return str(answers[agents[0].host.node.index]["interpreter"]), any(a["built"] for a in answers.values())


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
