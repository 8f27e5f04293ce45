"""Checkpoints beyond the nodes: put back before a run, brought to S3 by the head while it goes on and at its end."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from cloudgpu.errors import BadRequestError
from cloudgpu.node.mounts.options import s3_endpoint
from cloudgpu.recipe.data import Checkpoint, Data
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import Agent, number
from cloudgpu.run.copies import Way, fetch_to
from cloudgpu.run.each import each
from cloudgpu.run.files import Files, RemoteFile, Service, Services
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note
from cloudgpu.text import printable, size_text

NOTHING_THERE = "NoSuchKey"
"""What S3 calls an address under which nothing lies."""


def beginning(recipe: Recipe) -> str:
    """Where the checkpoint lies that a run begins with; empty for none."""
    checkpoint = recipe.checkpoint
    if checkpoint is None:
        return ""
    if checkpoint.resume is not None:
        return checkpoint.resume
    return checkpoint.to if checkpoint.to and "{run}" not in checkpoint.to else ""


def destination(recipe: Recipe, run_id: str) -> str:
    """Where a run's checkpoints go; empty for nowhere."""
    to = recipe.checkpoint.to if recipe.checkpoint else None
    return (to or "").replace("{run}", run_id)


def earlier(recipe: Recipe, files: Files) -> Sequence[RemoteFile]:
    """The files of the checkpoint that a run begins with; none where it is the first.

    Raises:
        CloudGpuError: They cannot be listed, or are named and not there.
    """
    begin, checkpoint = beginning(recipe), recipe.checkpoint
    if checkpoint is None or not begin:
        return ()
    try:
        return files(_dataset(checkpoint, begin))
    except BadRequestError as err:
        if err.code == NOTHING_THERE and checkpoint.resume is None:
            return ()
        raise


def restore(job: Job, agents: Sequence[Agent], way: Way) -> int:
    """Put an earlier checkpoint into the work directory of every node; bytes moved.

    Raises:
        RemoteCommandError: A node could not fetch it.
    """
    checkpoint, begin = job.recipe.checkpoint, beginning(job.recipe)
    listed = earlier(job.recipe, way.files)
    if checkpoint is None or not listed:
        return 0
    total = size_text(sum(file.size for file in listed))
    way.report(Note(f"checkpoint: {len(listed)} files, {total}, from {begin}"))

    def fetch(agent: Agent) -> int:
        target = f"{job.workdir(agent.home)}/{checkpoint.path}"
        return fetch_to(agent, target, _dataset(checkpoint, begin), listed, way)

    return sum(each(agents, fetch).values())


def keep(job: Job, agents: Sequence[Agent], services: Services) -> None:
    """Let the head bring to S3 what the ranks write to the checkpoint directory, while they run.

    Raises:
        RemoteCommandError: Its role gives it no keys.
    """
    to, checkpoint = destination(job.recipe, job.run_id), job.recipe.checkpoint
    head = next((agent for agent in agents if agent.host.node.index == 0), None)
    if checkpoint is None or head is None or not to:
        return
    source = f"{job.workdir(head.home)}/{checkpoint.path}"
    head.ask("keep", {"run_dir": job.run_dir(head.home), "source": source, **bucket_request(to, head, services(to))})


def bucket_request(to: str, agent: Agent, service: Service) -> dict[str, Any]:
    """What an agent must know of a place in S3 in order to write there."""
    place, region = source_of(to), service.region or agent.host.node.zone[:-1]
    return {
        "bucket": place.place,
        "prefix": place.path,
        "region": region,
        "endpoint": service.endpoint or s3_endpoint(region),
    }


def kept(job: Job, head: Agent) -> str:
    """Wait until the last checkpoint is there; what there is, in words. Empty where none is kept.

    Raises:
        RemoteCommandError: Something could not be brought there.
    """
    to = destination(job.recipe, job.run_id)
    if not to:
        return ""
    answer = head.ask("kept", {"run_dir": job.run_dir(head.home)})
    if not answer.get("files"):
        return f"no checkpoint was written: {to} has nothing of this run"
    return f"checkpoint: {answer['files']} files, {size_text(number(answer, 'bytes'))}, at {to}{not_sent(answer)}"


def not_sent(answer: Mapping[str, Any]) -> str:
    """What an upload left out, as the end of a sentence; empty where it left out nothing."""
    skipped = answer.get("skipped")
    names = [printable(str(one)) for one in skipped] if isinstance(skipped, list) else []
    return f"; not sent, because no regular files: {', '.join(names)}" if names else ""


def _dataset(checkpoint: Checkpoint, begin: str) -> Data:
    to = PurePosixPath("/") / checkpoint.path
    return Data.model_validate({"name": "checkpoint", "from": begin, "to": str(to)})
