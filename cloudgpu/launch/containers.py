"""A run's container on a node: its name, and the command line that runs a program inside it.

Each node has one container per run, in which all of its ranks run. See
`docs/decisions/0014-one-container-a-node.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

INSIDE = "/.cloudgpu"
"""Mount point of the agent's run directory inside the container."""

_ENTER = (
    'echo $$ >"$1" && shift && { command -v "$1" >/dev/null 2>&1 || '
    '{ echo "cloudgpu: $1: not found in the container" >&2; exit 127; }; } && exec "$@"'
)
"""Shell script that writes its process group ID to a file, for sending signals to the group, and runs the program."""


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
