"""Build the `docker run` arguments of a run's container and of a setup's container, and their bind mounts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cloudgpu.launch.containers import INSIDE
from cloudgpu.recipe.field_types import SizeGib
from cloudgpu.recipe.launch_sections import Container

_GIB: Final = 2**30
_MIB: Final = 2**20
RDMA_FOLDER: Final = "/dev/infiniband/"
_HUGE_PAGES: Final = "/dev/hugepages"


@dataclass(frozen=True)
class BindMount:
    """A bind mount: a directory or file on the node that the container can access.

    Attributes:
        target: Path in the container; empty for the same path as on the node.
    """

    source: str
    target: str = ""
    read_only: bool = False

    def option(self) -> str:
        """Return the value of the `--mount` option of `docker run`, which Docker parses as comma-separated values."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target or self.source}"]
        fields += ["readonly"] if self.read_only else []
        return ",".join(_quoted(field) for field in fields)


def _quoted(field: str) -> str:
    if not any(mark in field for mark in ',"\n'):
        return field
    doubled = field.replace('"', '""')
    return f'"{doubled}"'


@dataclass(frozen=True)
class Hardware:
    """Node hardware that a container can use.

    Attributes:
        gpus: True if the container gets GPUs; always False on a simulated node, which has none.
        subset: Indices of the GPUs that the container gets; empty for all.
        gpu_runtime: True to use the `nvidia` runtime, which nvidia-docker2 sets up, instead of `--gpus`.
        devices: Paths of RDMA devices, such as `/dev/infiniband/uverbs0`, and of GDRCopy's device, `/dev/gdrdrv`.
        huge_pages: True to mount the node's `/dev/hugepages` in the container.
    """

    gpus: bool = False
    subset: tuple[str, ...] = ()
    gpu_runtime: bool = False
    devices: tuple[str, ...] = ()
    huge_pages: bool = False


@dataclass(frozen=True)
class ContainerLaunch:
    """A container to start: image, name, labels and mounts.

    Attributes:
        image: Image reference, with the digest if it is known.
        labels: Docker labels that identify the container's run and cluster.
        agent_files: Directory on the node to which programs in the container write their process IDs.
    """

    name: str
    image: str
    labels: tuple[tuple[str, str], ...]
    mounts: tuple[BindMount, ...]
    agent_files: str


def run_line(container: Container, hardware: Hardware, holding: ContainerLaunch) -> tuple[str, ...]:
    """Return the `docker` arguments that start an idle container for the ranks.

    The command does not set the recipe's environment variables, because `docker exec` passes them to each rank.
    """
    return (
        *_idle(container, hardware, holding),
        *([f"--user={container.user}"] if container.user else []),
        "--entrypoint=sleep",
        *container.flags,
        holding.image,
        "infinity",
    )


def setup_line(container: Container, hardware: Hardware, holding: ContainerLaunch) -> tuple[str, ...]:
    """Return the `docker` arguments that start an idle container for a setup, whose files become an image.

    The user and the arguments of the container would become those of the image. So the user is set for the script
    alone, and a shell without arguments keeps the container running: it waits for input that never comes.
    """
    return (
        *_idle(container, hardware, holding),
        "--interactive",
        "--entrypoint=sh",
        *container.flags,
        holding.image,
    )


def _idle(container: Container, hardware: Hardware, holding: ContainerLaunch) -> Sequence[str]:
    return (
        "run",
        "--detach",
        "--rm",  # removes the container when it exits, even if the node reboots
        "--init",  # reaps the processes that the ranks leave behind
        "--pull=never",  # the agent has already put the image on the node
        f"--name={holding.name}",
        *(f"--label={name}={value}" for name, value in holding.labels),
        "--network=host",
        *_memory(container),
        *_gpus(hardware),
        *(f"--device={path}" for path in hardware.devices),
        *_mounts(holding, hardware),
    )


def _memory(container: Container) -> Sequence[str]:
    shared = "--ipc=host" if container.shm is None else f"--shm-size={int(container.shm)}g"
    locked, stack = container.memlock, container.stack_mib
    limits = [] if locked is None else [f"--ulimit=memlock={_bytes(locked)}"]
    return [shared, *limits, *([] if stack is None else [f"--ulimit=stack={stack * _MIB}"])]


def _bytes(size: SizeGib | str) -> int:
    return int(size) * _GIB if isinstance(size, SizeGib) else -1


def _gpus(hardware: Hardware) -> Sequence[str]:
    if not hardware.gpus:
        return []
    gpus = ",".join(hardware.subset) or "all"
    if hardware.gpu_runtime:
        return ["--runtime=nvidia", f"--env=NVIDIA_VISIBLE_DEVICES={gpus}"]
    # Docker requires these quotes, because it parses the option as comma-separated values.
    return [f'--gpus="device={gpus}"' if hardware.subset else "--gpus=all"]


def _mounts(holding: ContainerLaunch, hardware: Hardware) -> Sequence[str]:
    huge_pages = [BindMount(_HUGE_PAGES)] if hardware.huge_pages else []
    mounts = (BindMount(holding.agent_files, INSIDE), *holding.mounts, *huge_pages)
    return [f"--mount={mount.option()}" for mount in mounts]
