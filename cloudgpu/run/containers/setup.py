"""Run the recipe's setup in its image on every node, and keep the result as a local image that the ranks run in."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from cloudgpu.launch.containers import INSIDE, exec_line
from cloudgpu.node.agent.containers.spec import setup_container_name, setup_image_name
from cloudgpu.node.agent.environments.setup import VARIABLES_FILE, container_setup_key
from cloudgpu.node.containers.mounts import BindMount
from cloudgpu.node.containers.run_line import ContainerLaunch, setup_line
from cloudgpu.recipe.sections.environment import Container
from cloudgpu.run.agent import Agent
from cloudgpu.run.containers.requests import (
    AGENT_FILES,
    NodeImage,
    SetupImage,
    container_hardware,
    data_mounts,
    node_run_paths,
)
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Report
from cloudgpu.run.setup import request_setup, setup_request, setup_root

_SCRIPT = "setup.sh"
_ENTER = (
    'exec 2>&1; command -v "$1" >/dev/null || { echo "cloudgpu: $1: not found in the container"; exit 127; }; exec "$@"'
)
"""Shell script that runs the setup with one stream for its output, because Docker does not keep the order of two."""


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
