"""The `environment` section of a recipe: the container or Python environment of the ranks."""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.units import SizeGib

IMAGE: Final = (
    r"^(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)
"""A Docker image reference: registry, path, tag and digest."""

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Container(Section):
    """The container image that the ranks run in. Every node runs one container per run."""

    image: str = Field(pattern=IMAGE)
    """Image with tag or digest, for example `nvcr.io/nvidia/pytorch:24.12-py3`. A tag is resolved once, so every node
    runs the same image."""
    login: str | None = None
    """User name for the registry, for example `$oauthtoken` for NGC. Do not put the secret here; see `password`. ECR
    does not need a login: cloudgpu requests a token with your AWS credentials."""
    password: EnvName | None = None
    """Name of the environment variable that contains the password or token for `login`. Default: the first entry of
    `environment.secrets`. A variable that is named only here is used for the registry and is not passed to the
    ranks."""
    pull: Literal["missing", "always", "never"] = "missing"
    """Pull policy: `missing` pulls the image if a node does not have it, `always` resolves the tag again and pulls the
    image, `never` uses only images that the nodes already have."""
    share: Literal["each", "head"] = "each"
    """With `each`, every node pulls the image; with `head`, only the first node pulls it, and the image is then copied
    from node to node. `head` reduces the load on a slow or rate-limited registry, but temporarily needs additional disk
    space: twice the image's size."""
    user: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    """User and group inside the container, for example `1000:1000`. Default: the image's user."""
    shm: SizeGib | None = None
    """Size of the container's `/dev/shm`, for example `16GiB`. Default: the node's `/dev/shm`."""
    memlock: SizeGib | Literal["unlimited"] | None = "unlimited"
    """Limit on locked memory, which RDMA needs, for example `16GiB` or `unlimited`. null keeps the container engine's
    default, for engines that are not allowed to raise the limit."""
    stack_mib: int | None = Field(default=64, ge=1, le=4096, strict=True)
    """Stack size limit in MiB; null keeps the container engine's default."""
    flags: tuple[str, ...] = ()
    """Additional `docker run` options, each as a single word, for example `--cap-add=SYS_PTRACE`."""


class PythonEnvironment(Section):
    """A Python environment on the node, without a container."""

    version: str | None = Field(default=None, pattern=r"^3\.[0-9]{1,3}$")
    """Python version, for example `3.11`. Default: the node's Python."""
    requirements: tuple[str, ...] = ()
    """Requirements in pip syntax, for example `torch>=2.6`, or `-r requirements.txt` for a file in the work
    directory. Install packages that are in the work directory, such as `-e ./pkg`, in `setup` instead."""
    torch_backend: str | None = Field(default=None, pattern=r"^cu[0-9]{2,3}$")
    """CUDA build of PyTorch, for example `cu126`, installed from PyTorch's package index. Default: PyTorch's default
    build. Ignored in a rehearsal, which has no GPU."""


class Environment(Section):
    """The environment of every rank: a container or a Python environment, not both."""

    container: Container | None = None
    """Container in which the ranks run."""
    python: PythonEnvironment | None = None
    """Python environment in which the ranks run directly on the node."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Environment variables of every rank."""
    secrets: tuple[EnvName, ...] = ()
    """Names of environment variables to pass to the ranks. Their values are taken from your environment or `--secret`,
    never written to a disk, and masked in the output of the ranks."""
