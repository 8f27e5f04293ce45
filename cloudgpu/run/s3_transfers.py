"""Restore a checkpoint from S3 before a run, and upload checkpoints and outputs to S3 during and after the run.

The nodes upload with their IAM role, so uploads continue even if the caller has disconnected.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from cloudgpu.errors import BadRequestError, CloudGpuError
from cloudgpu.node.dataset_mounts import s3_endpoint
from cloudgpu.recipe.schema import Checkpoint, Data, Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.agent import FINISH_UPLOAD, START_UPLOAD, Agent, count_field, run_on_agents
from cloudgpu.run.dataset_copies import (
    BucketServices,
    DistributionSettings,
    Files,
    RemoteFile,
    S3Service,
    download_files_to,
)
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note
from cloudgpu.ssh.fanout import run_on_all
from cloudgpu.ssh.transfer.glob import glob_regexes
from cloudgpu.text import plural, printable, size_text

NO_SUCH_KEY = "NoSuchKey"
"""S3 error code for a missing object."""
_NAME: Final = "outputs"
"""Name that distinguishes this upload from the checkpoint upload in the agent."""
_NODE_DIRECTORY: Final = r"(?i)node-(?:0|[1-9][0-9]*)(?:/|\Z)"
"""Pattern of the paths that are in the directory of a node. Some file systems ignore the case of names."""


def resume_uri(recipe: Recipe) -> str:
    """Return the URI of the checkpoint that a run resumes from, or an empty string."""
    checkpoint = recipe.checkpoint
    if checkpoint is None:
        return ""
    if checkpoint.resume is not None:
        return checkpoint.resume
    return checkpoint.to if checkpoint.to and "{run}" not in checkpoint.to else ""


def checkpoint_destination(recipe: Recipe, run_id: str) -> str:
    """Return the URI to which a run's checkpoints are uploaded, or an empty string."""
    to = recipe.checkpoint.to if recipe.checkpoint else None
    return (to or "").replace("{run}", run_id)


def list_resume_files(recipe: Recipe, files: Files) -> Sequence[RemoteFile]:
    """List the files of the checkpoint that a run resumes from.

    Return no files if the run does not resume from a checkpoint, or if `checkpoint.to` does not contain one yet.
    """
    origin, checkpoint = resume_uri(recipe), recipe.checkpoint
    if checkpoint is None or not origin:
        return ()
    try:
        return files(_dataset(checkpoint, origin))
    except BadRequestError as err:
        if err.code == NO_SUCH_KEY and checkpoint.resume is None:
            return ()
        raise


def restore(job: Job, agents: Sequence[Agent], way: DistributionSettings) -> int:
    """Download the earlier checkpoint to the work directory of every node. Return the number of bytes transferred."""
    checkpoint, origin = job.recipe.checkpoint, resume_uri(job.recipe)
    listed = list_resume_files(job.recipe, way.files)
    if checkpoint is None or not listed:
        return 0
    total = size_text(sum(file.size for file in listed))
    way.report(Note(f"checkpoint: {plural(len(listed), 'file')}, {total}, from {origin}", detail=True))

    def fetch(agent: Agent) -> int:
        target = f"{job.workdir(agent.home)}/{checkpoint.path}"
        return download_files_to(agent, target, _dataset(checkpoint, origin), listed, way)

    return sum(run_on_agents(agents, fetch).values())


def start_checkpoint_upload(job: Job, agents: Sequence[Agent], bucket_service: BucketServices) -> None:
    """Start a process on the head node that uploads the checkpoint directory to S3 while the ranks run."""
    to, checkpoint = checkpoint_destination(job.recipe, job.run_id), job.recipe.checkpoint
    head = next((agent for agent in agents if agent.host.node.index == 0), None)
    if checkpoint is None or head is None or not to:
        return
    source = f"{job.workdir(head.home)}/{checkpoint.path}"
    head.ask(
        START_UPLOAD,
        {"run_dir": job.run_dir(head.home), "source": source, **bucket_request(to, head, bucket_service(to))},
    )


def bucket_request(to: str, agent: Agent, service: S3Service) -> dict[str, Any]:
    """Return the request fields that identify an S3 prefix."""
    source, region = source_of(to), service.region or agent.host.node.zone[:-1]
    return {
        "bucket": source.place,
        "prefix": source.path,
        "region": region,
        "endpoint": service.endpoint_url or s3_endpoint(region),
    }


def finish_checkpoint_upload(job: Job, head: Agent) -> str:
    """Wait for the last checkpoint upload and return a summary, or an empty string if checkpoints are not uploaded."""
    to = checkpoint_destination(job.recipe, job.run_id)
    if not to:
        return ""
    answer = head.ask(FINISH_UPLOAD, {"run_dir": job.run_dir(head.home)})
    if not answer.get("files"):
        return f"the run wrote no checkpoint, so nothing was uploaded to {to}"
    size = size_text(count_field(answer, "bytes"))
    return f"checkpoint: {plural(answer['files'], 'file')}, {size}, at {to}{skipped_files_clause(answer)}"


def skipped_files_clause(answer: Mapping[str, Any]) -> str:
    """Return a clause that lists the skipped files, or an empty string if there are none."""
    skipped = answer.get("skipped")
    names = [printable(str(name)) for name in skipped] if isinstance(skipped, list) else []
    return f"; not uploaded because they are not regular files: {', '.join(names)}" if names else ""


def _dataset(checkpoint: Checkpoint, origin: str) -> Data:
    to = PurePosixPath("/") / checkpoint.path
    return Data.model_validate({"name": "checkpoint", "from": origin, "to": str(to)})


def place_on_head(path: str) -> str:
    """Return the path below the outputs for a path on the head node of several nodes.

    The head node's outputs have no directory of their own, and `node-1` and so on are the directories of the other
    nodes. Outputs of the head node with such a name are therefore stored in `node-0`.
    """
    return f"node-0/{path}" if re.match(_NODE_DIRECTORY, path) else path


def outputs_destination(recipe: Recipe, run_id: str) -> str:
    """Return the S3 URI for the run's outputs, or an empty string."""
    return (recipe.outputs_to or "").replace("{run}", run_id)


def start_uploads(job: Job, agents: Sequence[Agent], bucket_service: BucketServices) -> None:
    """Start a process on every node that uploads the node's outputs to S3 after the run."""
    to = outputs_destination(job.recipe, job.run_id)
    if not to:
        return
    service = bucket_service(to)

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
        agent.ask(START_UPLOAD, request)

    run_on_agents(agents, start_upload)


def finish_uploads(job: Job, agents: Sequence[Agent]) -> tuple[str, tuple[str, ...]]:
    """Wait for the uploads. Return a summary and one message per node that failed."""
    to = outputs_destination(job.recipe, job.run_id)
    if not to:
        return "", ()
    by_index = {agent.host.node.index: agent for agent in agents}

    def wait_for_upload(index: int) -> tuple[int, int, str]:
        agent = by_index[index]
        answer = agent.ask(FINISH_UPLOAD, {"name": _NAME, "run_dir": job.run_dir(agent.home)})
        return count_field(answer, "files"), count_field(answer, "bytes"), skipped_files_clause(answer)

    answers = run_on_all([agent.host for agent in agents], lambda host: wait_for_upload(host.node.index))
    failures = tuple(answer.message for answer in answers.values() if isinstance(answer, CloudGpuError))
    uploads = [answer for answer in answers.values() if not isinstance(answer, CloudGpuError)]
    files = sum(count for count, _, _ in uploads)
    if not files:
        return ("" if failures else f"there were no outputs to upload to {to}"), failures
    text = f"outputs: {plural(files, 'file')}, {size_text(sum(size for _, size, _ in uploads))}, at {to}"
    return text + "".join(clause for _, _, clause in uploads), failures
