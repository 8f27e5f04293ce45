"""Run the recipe's setup on every node, or in its image, unless it has already run there with the same inputs."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from cloudgpu.errors import StateError
from cloudgpu.files import open_for_reading
from cloudgpu.launch.containers import INSIDE, exec_line
from cloudgpu.node.agent.containers.run_container import setup_container_name, setup_image_name
from cloudgpu.node.agent.environments.setup import VARIABLES_FILE, container_setup_key
from cloudgpu.node.containers import BindMount, ContainerLaunch, setup_line
from cloudgpu.recipe.launch_sections import Container
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent, run_on_agents
from cloudgpu.run.containers.requests import (
    AGENT_FILES,
    NodeImage,
    SetupImage,
    container_hardware,
    data_mounts,
    node_run_paths,
)
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note, Report, relay
from cloudgpu.ssh.transfer.local_tree import files_to_send

_FORMAT: Final = 1
"""Version of the digest. A new version runs every setup again."""
_WORD: Final = re.compile(r"[^\s\"'`=;|&()<>$]+")
_SCRIPT = "setup.sh"
_ENTER = (
    'exec 2>&1; command -v "$1" >/dev/null || { echo "cloudgpu: $1: not found in the container"; exit 127; }; exec "$@"'
)
"""Shell script that runs the setup with one stream for its output, because Docker does not keep the order of two."""


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
