"""A run's container on a node: its name, and the command line that starts a program inside it.

Each node has one container per run, and every rank is executed in it. See
`docs/decisions/0014-one-container-a-node.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

INSIDE = "/.cloudgpu"
"""Where the agent's directory of a run is mounted in its container."""

_ENTER = (
    'echo $$ >"$1" && shift && { command -v "$1" >/dev/null 2>&1 || '
    '{ echo "cloudgpu: $1: not found in the container" >&2; exit 127; }; } && exec "$@"'
)
"""Leaves the number of the process group behind, so that a signal can be sent to it, and becomes the program."""


@dataclass(frozen=True)
class DockerEngine:
    """A node's Docker engine.

    Attributes:
        host: `unix:///var/run/docker.sock`; empty for the client's default.
    """

    docker: str = "docker"
    host: str = ""

    @property
    def client(self) -> tuple[str, ...]:
        """First words of every command line for this engine."""
        return (self.docker, "--host", self.host) if self.host else (self.docker,)


def container_name(run_id: str, node_index: int) -> str:
    """Return the name of a run's container on a node. It has the node index because nodes may share an engine."""
    return f"cloudgpu-{run_id}-{node_index}"


def pid_file(name: str) -> str:
    """Return the file with a program's process group ID, as seen inside the container."""
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
) -> tuple[str, ...]:
    """Return the `docker exec` command line that runs a program in an existing container.

    Args:
        engine: Container engine.
        container: Name of the container.
        argv: The program with its arguments, without a shell.
        workdir: Working directory inside the container.
        pid_file: File inside the container to write the process group ID to; empty for none.
        env_file: File on the node with names of variables. Their values come from the client's environment, so that
            none appears in a command line or on a disk.
        interactive: Forward standard input.
    """
    options = ("--interactive",) if interactive else ()
    names = ("--env-file", env_file) if env_file else ()
    entered = ("sh", "-c", _ENTER, "cloudgpu", pid_file) if pid_file else ()
    return (*engine.client, "exec", *options, "--workdir", workdir, *names, container, *entered, *argv)
