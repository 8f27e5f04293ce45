"""A run's container on a node: its name, its image, and the command line that runs a program inside it.

Each node has one container per run, in which all of its ranks run. See
`docs/decisions/0014-one-container-per-node.md`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_HUB = "docker.io"
_LOOPBACK = re.compile(r"^127\.\d+\.\d+\.\d+$")
INSIDE = "/.cloudgpu"
"""Mount point of the agent's run directory inside the container."""
_ENTER = (
    'echo $$ >"$1" && shift && { command -v "$1" >/dev/null 2>&1 || '
    '{ echo "cloudgpu: $1: not found in the container" >&2; exit 127; }; } && exec "$@"'
)
"""Shell script that writes its process group ID to a file, for sending signals to the group, and runs the program."""


@dataclass(frozen=True)
class ImageName:
    """The parsed name of a container image.

    Attributes:
        registry: Registry, such as `nvcr.io` or `127.0.0.1:5000`; `docker.io` if the name contains none.
        path: Path of the repository, such as `nvidia/pytorch`.
        tag: Tag. If the name contains no tag: empty if it contains a digest, otherwise `latest`.
        digest: Digest, `sha256:...`; empty if the name contains none.
    """

    registry: str
    path: str
    tag: str
    digest: str

    @property
    def repository(self) -> str:
        """Registry and path, as `docker pull` expects them."""
        return f"{self.registry}/{self.path}"

    @property
    def server(self) -> str:
        """Server name for `docker login`."""
        return "https://index.docker.io/v1/" if self.registry == _HUB else self.registry

    @property
    def on_loopback(self) -> bool:
        """True if the registry is on a loopback address, which is a different registry on each machine."""
        host = self.registry.rpartition(":")[0] or self.registry
        return host == "localhost" or bool(_LOOPBACK.match(host))

    def pinned(self, digest: str) -> str:
        """Return the same image pinned to a digest."""
        return f"{self.repository}@{digest}"


def parse_image_name(written: str) -> ImageName:
    """Parse an image name. The first component is a registry if it is `localhost` or contains a dot or a colon."""
    named, _, digest = written.partition("@")
    head, slash, rest = named.partition("/")
    is_registry = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if is_registry else (_HUB, named)
    path, colon, tag = path.partition(":")
    if registry == _HUB and "/" not in path:
        path = f"library/{path}"
    return ImageName(registry, path, tag if colon else "" if digest else "latest", digest)


@dataclass(frozen=True)
class DockerEngine:
    """A node's Docker engine.

    Attributes:
        docker: Docker client to run.
        host: Address of the engine, such as `unix:///var/run/docker.sock`; empty for the client's default.
    """

    docker: str = "docker"
    host: str = ""

    @property
    def client(self) -> tuple[str, ...]:
        """Prefix of every command line for this engine: the Docker client and, if set, its `--host` option."""
        return (self.docker, "--host", self.host) if self.host else (self.docker,)


def container_name(run_id: str, node_index: int) -> str:
    """Return the name of a run's container on a node, with the node index because nodes may share an engine."""
    return f"cloudgpu-{run_id}-{node_index}"


def pid_file(name: str) -> str:
    """Return the path, inside the container, of the file that contains a program's process group ID."""
    return f"{INSIDE}/{name}.pid"


def exec_line(
    engine: DockerEngine,
    container: str,
    argv: Sequence[str],
    *,
    workdir: str,
    pid_file: str = "",
    env_file: str = "",
    interactive: bool = False,
    user: str = "",
) -> tuple[str, ...]:
    """Return the `docker exec` command line that runs a program in an existing container.

    Args:
        engine: Container engine.
        container: Name of the container.
        argv: Program and arguments, run without a shell.
        workdir: Working directory inside the container.
        pid_file: File inside the container to which the process group ID is written; empty to write no file.
        env_file: File on the node that lists the names of environment variables. The Docker client takes the values
            from its own environment, so that no value appears in a command line or on a disk.
        interactive: Whether to forward standard input.
        user: User and group inside the container; empty for the container's user.
    """
    options = (*(("--interactive",) if interactive else ()), *(("--user", user) if user else ()))
    names = ("--env-file", env_file) if env_file else ()
    entered = ("sh", "-c", _ENTER, "cloudgpu", pid_file) if pid_file else ()
    return (*engine.client, "exec", *options, "--workdir", workdir, *names, container, *entered, *argv)
