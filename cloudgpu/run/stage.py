"""Stage the work directory, datasets and Python environment on every node, and run the recipe's setup there."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cloudgpu.errors import RemoteCommandError, StateError
from cloudgpu.files import open_for_reading
from cloudgpu.launch.containers import INSIDE, exec_line
from cloudgpu.node.agent.containers.run_container import setup_container_name, setup_image_name
from cloudgpu.node.agent.environments.setup import VARIABLES_FILE, container_setup_key
from cloudgpu.node.containers import BindMount, ContainerLaunch, setup_line
from cloudgpu.recipe.launch_sections import Container
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.containers import (
    AGENT_FILES,
    NodeImage,
    SetupImage,
    container_hardware,
    data_mounts,
    node_run_paths,
    provide_image,
)
from cloudgpu.run.dataset_copies import BucketServices, DistributionSettings, Files, aws_s3_service
from cloudgpu.run.dataset_staging import provide_dataset
from cloudgpu.run.job import Job
from cloudgpu.run.local_files import data_within, file_named_by, with_files, without_data
from cloudgpu.run.progress import Note, Report, relay, report_transfer
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.run.s3_transfers import restore
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.text import plural, size_text

_FORMAT: Final = 1
"""Version of the digest. A new version runs every setup again."""
_WORD: Final = re.compile(r"[^\s\"'`=;|&()<>$]+")
_SCRIPT = "setup.sh"
_ENTER = (
    'exec 2>&1; command -v "$1" >/dev/null || { echo "cloudgpu: $1: not found in the container"; exit 127; }; exec "$@"'
)
"""Shell script that runs the setup with one stream for its output, because Docker does not keep the order of two."""
NO_SECRETS: Final[Mapping[str, str]] = {}
_SHOWN = 5
_COPY_S = 3600.0


def setup_digest(recipe: Recipe, base: Path) -> str:
    """Return a digest of the setup and its inputs; empty if the recipe has no setup.

    The inputs are the variables, the names of the secrets, and the files and directories of the work directory that the
    script names: a changed `requirements.txt` runs `pip install -r requirements.txt` again, a changed `train.py` does
    not.
    """
    if not recipe.setup:
        return ""
    root = None if recipe.workdir is None else (base / recipe.workdir).resolve()
    environment = recipe.environment
    inputs = [
        _FORMAT,
        recipe.setup,
        sorted(environment.env.items()),
        sorted(environment.secrets),
        [] if root is None else [(path, _sha256(root / path)) for path in _named_files(recipe.setup, root)],
    ]
    return hashlib.sha256(json.dumps(inputs).encode(errors="surrogateescape")).hexdigest()


def run_setup(
    job: Job, agents: Sequence[Agent], digest: str, interpreters: Mapping[int, str], secrets: Mapping[str, str],
    report: Report,
) -> None:  # fmt: skip
    """Run the setup directly on every node on which it has not run with this digest."""
    request_setup(
        agents,
        lambda agent: setup_request(job, agent, digest, secrets) | {"interpreter": interpreters[agent.host.node.index]},
        report,
    )


def request_setup(agents: Sequence[Agent], request_for: Callable[[Agent], Mapping[str, Any]], report: Report) -> None:
    """Send every node its request, and report if no node had to run the setup."""

    def prepare(agent: Agent) -> bool:
        answer = agent.ask("setup", request_for(agent), lambda line: relay(line, agent.host.node.index, report))
        return bool(answer["ran"])

    if not any(run_on_agents(agents, prepare).values()):
        report(Note("setup already ran on every node with the same inputs"))


def setup_request(job: Job, agent: Agent, digest: str, secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a node's request that is the same with and without a container."""
    environment = job.recipe.environment
    return {
        "script": job.recipe.setup,
        "digest": digest,
        "workdir": job.workdir(agent.home),
        "root": setup_root(agent.home),
        "env": dict(environment.env),
        "secrets": {name: secrets[name] for name in environment.secrets},
    }


def setup_root(home: str) -> str:
    """Return the directory on a node that keeps the finished setups."""
    return f"{home}/.cloudgpu/setup"


def _named_files(script: str, root: Path) -> Iterator[str]:
    """Yield the files of the work directory that the script names, and all files of a directory that it names."""
    named = {PurePosixPath(word) for word in _WORD.findall(script)}
    for file in files_to_send(root).files:
        path = PurePosixPath(file)
        if named & {path, *path.parents}:
            yield file


def _sha256(path: Path) -> str:
    try:
        if path.is_symlink():
            return str(path.readlink())
        with open_for_reading(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as err:
        raise StateError(f"cannot read {path}: {err.strerror}", hint="check the permissions of the file") from err


@dataclass(frozen=True)
class ImageSetup:
    """The setup of a run that has a container.

    Attributes:
        container: The recipe's container.
        digest: Digest of the setup and its inputs, except the image.
        data: Directory of each dataset by name, without the node's root prefix.
        secrets: Values of the recipe's secrets.
    """

    job: Job
    container: Container
    digest: str
    data: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)

    def run(self, agents: Sequence[Agent], images: Mapping[int, NodeImage], report: Report) -> dict[int, NodeImage]:
        """Run the setup on every node that lacks its result for these inputs. Return each node's derived image."""
        request_setup(agents, lambda agent: self.request(agent, images[agent.host.node.index]), report)
        return {agent.host.node.index: self.result(agent, images[agent.host.node.index]) for agent in agents}

    def request(self, agent: Agent, image: NodeImage) -> dict[str, Any]:
        """Return the `setup` request of a node."""
        job, folder = self.job, self._folder(agent, image)
        key = folder.name
        mounts = (BindMount(f"{folder}/work"), *data_mounts(job.recipe, node_run_paths(job, agent, self.data)))
        hardware = container_hardware(job.recipe, agent.host.node, image)
        holding = ContainerLaunch(setup_container_name(key), image.image, (), mounts, f"{folder}/{AGENT_FILES}")
        run_script = exec_line(
            image.engine,
            holding.name,
            ("sh", "-c", _ENTER, "cloudgpu", *image.entrypoint, "bash", "-eo", "pipefail", f"{INSIDE}/{_SCRIPT}"),
            workdir=f"{folder}/work",
            env_file=f"{folder}/{VARIABLES_FILE}",
            user=self.container.user or "",
        )
        container = {
            "name": holding.name,
            "image": image.image,
            "shown": self.container.image,
            "client": list(image.engine.client),
            "run": list(setup_line(self.container, hardware, holding)),
            "gpus": hardware.gpus,
            "devices": list(hardware.subset),
            "own": [f"{folder}/work", INSIDE],
            "script": f"{folder}/{AGENT_FILES}/{_SCRIPT}",
            "run_script": list(run_script),
            "recipe": job.recipe.name,
        }
        request = setup_request(job, agent, self._image_digest(agent, image), self.secrets)
        return request | {"interpreter": "", "container": container}

    def result(self, agent: Agent, image: NodeImage) -> NodeImage:
        """Return a node's image with the local image that the setup makes of it."""
        folder = self._folder(agent, image)
        return replace(image, setup=SetupImage(setup_image_name(folder.name), f"{folder}/work"))

    def _folder(self, agent: Agent, image: NodeImage) -> PurePosixPath:
        """Return the directory of the setup on a node. Its name is the key of the setup."""
        key = container_setup_key(self.job.recipe.name, self._image_digest(agent, image))
        return PurePosixPath(setup_root(agent.home), key)

    def _image_digest(self, agent: Agent, image: NodeImage) -> str:
        """Return a digest of everything that the local image of a node depends on.

        The directory of the setups is an input because nodes may share an engine, but not the files of their setups.
        """
        container = self.container
        inputs = [self.digest, image.image_id, container.user, list(container.flags), setup_root(agent.home)]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


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


def stage_job(
    job: Job,
    agents: Sequence[Agent],
    files: Files,
    base: Path,
    report: Report,
    *,
    sent_bytes: int = 0,
    bucket_service: BucketServices = aws_s3_service,
    secrets: Mapping[str, str] = NO_SECRETS,
) -> Staged:
    """Restore the checkpoint, copy or mount the datasets, build the environment, and run the recipe's setup.

    The setup of a recipe with a container runs later, in its image; see `stage_images`.

    Call `send_workdir` first. `sent_bytes` is its result and becomes part of the returned value. `secrets` are the
    values of the recipe's secrets, for the setup.
    """
    way = DistributionSettings(base, files, bucket_service, report)
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
    """Provide the recipe's image on every node and run the recipe's setup in it. Call `stage_job` first.

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
