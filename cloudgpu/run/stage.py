"""Stage the work directory, datasets and Python environment on every node before any rank starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final

from cloudgpu.errors import RemoteCommandError
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.containers.images import provide_image
from cloudgpu.run.containers.logins import RegistryLogin
from cloudgpu.run.containers.requests import NodeImage
from cloudgpu.run.data.copies import DistributionSettings, Files, Services, aws_s3_service
from cloudgpu.run.data.prepare import provide_dataset
from cloudgpu.run.data.s3_transfers import restore
from cloudgpu.run.job import Job
from cloudgpu.run.local_files import data_within, file_named_by, with_files, without_data
from cloudgpu.run.progress import Note, Report, relay, report_transfer
from cloudgpu.run.setup import ImageSetup, run_setup, setup_digest
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.text import plural, size_text

NO_SECRETS: Final[Mapping[str, str]] = {}
_SHOWN = 5
_COPY_S = 3600.0


@dataclass(frozen=True)
class Staged:
    """The result of staging.

    Attributes:
        interpreters: Path of the Python interpreter that has the recipe's requirements, by node index.
        data: Directory of each dataset by name, without the node's root prefix.
        images: Container image that the ranks run in, by node index; empty if they run without a container.
    """

    interpreters: Mapping[int, str]
    data: Mapping[str, str]
    sent_bytes: int
    data_bytes: int
    environment_built: bool
    images: Mapping[int, NodeImage] = field(default_factory=dict)


def stage(
    job: Job,
    agents: Sequence[Agent],
    files: Files,
    base: Path,
    report: Report,
    *,
    sent_bytes: int = 0,
    services: Services = aws_s3_service,
    secrets: Mapping[str, str] = NO_SECRETS,
) -> Staged:
    """Restore the checkpoint, copy or mount the datasets, build the environment, and run the recipe's setup.

    The setup of a recipe with a container runs later, in its image; see `stage_images`.

    Call `send_workdir` first. `sent_bytes` is its result and becomes part of the returned value. `secrets` are the
    values of the recipe's secrets, for the setup.
    """
    way = DistributionSettings(base, files, services, report)
    restore(job, agents, way)
    data_bytes = sum(provide_dataset(dataset, job, agents, way) for dataset in job.recipe.data)
    digest = setup_digest(job.recipe, base) if job.recipe.environment.container is None else ""
    interpreters, built = _environment(job, agents, report, base, digest)
    if digest:
        run_setup(job, agents, digest, interpreters, secrets, report)
    data = {dataset.name: str(dataset.to) for dataset in job.recipe.data}
    return Staged(interpreters, data, sent_bytes, data_bytes, built)


def stage_images(
    job: Job,
    agents: Sequence[Agent],
    staged: Staged,
    base: Path,
    report: Report,
    *,
    login: RegistryLogin | None = None,
    secrets: Mapping[str, str] = NO_SECRETS,
) -> Staged:
    """Provide the recipe's image on every node and run the recipe's setup in it. Call `stage` first.

    Does nothing if the recipe has no container, or the nodes are simulated and cannot run containers.
    """
    container = job.recipe.environment.container
    if container is None or job.inventory.head.simulated:
        return staged
    images = provide_image(container, agents, login, report)
    digest = setup_digest(job.recipe, base)
    if digest:
        images = ImageSetup(job, container, digest, staged.data, secrets).run(agents, images, report)
    return replace(staged, images=images)


def send_workdir(job: Job, agents: Sequence[Agent], base: Path, report: Report) -> int:
    """Upload changed files, create this run's private copy of the work directory, and return the number of bytes sent.

    Callers must serialize calls per recipe and node, because otherwise a run could copy another run's files.
    """
    if job.recipe.workdir is None:
        run_on_agents(agents, lambda agent: agent.host.run(RemoteCommand("mkdir", "-p", job.workdir(agent.home))))
        return 0
    root = (base / job.recipe.workdir).resolve()
    listing = without_data(files_to_send(root), job.recipe, base)
    links = data_within(job.recipe, base)
    files = plural(len(listing.files), "file")
    report(Note(f"work directory {root.name}: {files}, {size_text(listing.bytes)}", detail=True))
    for skipped in listing.skipped[:_SHOWN]:
        report(Note(f"not sent: {skipped.path}: {skipped.reason}"))
    if len(listing.skipped) > _SHOWN:
        report(Note(f"not sent: {len(listing.skipped) - _SHOWN} more"))

    def send(agent: Agent) -> int:
        cache, work = job.cache(agent.home), job.workdir(agent.home)
        with report_transfer(report, f"sending {root.name}", agent.host.node.index) as on_bytes:
            sent = agent.host.send_tree(root, (*listing.files, *listing.folders), cache, on_bytes)
        agent.host.run(RemoteCommand("mkdir", "-p", cache, work))
        # Reflinks share blocks if the file system supports them. Hard links would let a run change later runs' files.
        agent.host.run(RemoteCommand("cp", "-a", "--reflink=auto", f"{cache}/.", work), timeout_s=_COPY_S)
        for path, target in links.items():
            place = PurePosixPath(work, path)
            agent.host.run(RemoteCommand("mkdir", "-p", str(place.parent)))
            agent.host.run(RemoteCommand("ln", "-sfn", f"{agent.root}{target}", str(place)))
        return sent

    return sum(run_on_agents(agents, send).values())


def _environment(
    job: Job, agents: Sequence[Agent], report: Report, base: Path, setup: str
) -> tuple[dict[int, str], bool]:
    python = job.recipe.environment.python
    if python is None:
        return {agent.host.node.index: "python3" for agent in agents}, False
    # A simulated node uses the package index that is configured on it, because PyTorch's index may be unreachable.
    backend = None if job.inventory.head.simulated else python.torch_backend
    requirements = python.requirements
    if any(map(file_named_by, requirements)):
        requirements = with_files(requirements, base / (job.recipe.workdir or "."))
    request = {"requirements": list(requirements), "version": python.version, "torch_backend": backend}
    request |= {"setup": setup} if setup else {}

    def build(agent: Agent) -> tuple[str, bool]:
        answer = agent.ask("env", request, lambda line: relay(line, agent.host.node.index, report))
        if not isinstance(answer.get("interpreter"), str):
            node = agent.host.node
            message = f"node {node.index} ({node.instance_id}): the agent did not report an interpreter"
            raise RemoteCommandError(message, hint="run the command again")
        return answer["interpreter"], bool(answer.get("built"))

    results = run_on_agents(agents, build)
    return {index: path for index, (path, _) in results.items()}, any(built for _, built in results.values())
