"""The `environment` section: what a rank finds around it."""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import SizeGib

IMAGE: Final = (
    r"^(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)
"""Registry, path, tag and digest, as Docker reads them."""

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Container(Section):
    """A container image that every rank runs in. There is one container a node and run."""

    image: str = Field(pattern=IMAGE)
    """Image with tag or digest, for instance `nvcr.io/nvidia/pytorch:24.12-py3`. What a tag names is looked up once,
    and every node runs that very image."""
    login: str | None = None
    """Name of the registry login, for instance `$oauthtoken` of NGC. Its secret is never written here: see `password`.
    ECR needs none: its token is fetched with your AWS credentials."""
    password: EnvName | None = None
    """Name of the variable of your environment that holds the login's password or token; empty means the first of
    `environment.secrets`. One that is named only here is for the registry alone: the ranks do not get it."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When the image is pulled: where a node does not have it, after asking the registry what its tag names now, or
    never."""
    share: Literal["each", "head"] = "each"
    """Every node pulls it, or the first one does and hands an archive of it to the others, node to node. `head` spares
    a slow or limited registry and needs twice the image's size more on the disks for a while."""
    user: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    """User, and group, inside the container, for instance `1000:1000`; empty means the image's own."""
    shm: SizeGib | None = None
    """Shared memory of the container's own, for instance `16GiB`; empty means that it shares the node's."""
    memlock: SizeGib | Literal["unlimited"] | None = "unlimited"
    """How much memory the ranks may lock, which RDMA needs; null leaves it to the engine's default, where an engine may
    not raise it."""
    stack_mib: int | None = Field(default=64, ge=1, le=4096, strict=True)
    """Limit of a stack in MiB; null leaves it to the engine's default."""
    flags: tuple[str, ...] = ()
    """More options of `docker run`, each in one word, for instance `--cap-add=SYS_PTRACE`."""


class PythonEnvironment(Section):
    """A Python environment on the bare node."""

    version: str | None = Field(default=None, pattern=r"^3\.[0-9]{1,3}$")
    """Python version, for instance `3.11`; empty means the node's own."""
    requirements: tuple[str, ...] = ()
    """Requirements as pip reads them, for instance `torch>=2.6`."""
    torch_backend: str | None = Field(default=None, pattern=r"^cu[0-9]{2,3}$")
    """CUDA build of PyTorch, for instance `cu126`, which uv takes from PyTorch's own index; empty means the default
    one. A rehearsal, which has no GPU, does without it."""


class Environment(Section):
    """What a rank finds around it: a container or a Python environment, never both."""

    container: Container | None = None
    """Run in this container."""
    python: PythonEnvironment | None = None
    """Run on the bare node with this Python."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Environment variables of every rank."""
    secrets: tuple[EnvName, ...] = ()
    """Names of environment variables whose values come from the caller's environment and are never stored."""
