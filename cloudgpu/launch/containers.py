"""A run's container on a node, as values: what it is called, and the line that starts a program inside it.

One container a node and run; every rank is executed in it. See `docs/decisions/0014-one-container-a-node.md`.
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
class Engine:
    """A node's Docker engine: the client's path there, and where the engine listens.

    Attributes:
        host: `unix:///var/run/docker.sock`; empty for the client's own default.
    """

    docker: str = "docker"
    host: str = ""

    @property
    def client(self) -> tuple[str, ...]:
        """The words that every line for this engine begins with."""
        return (self.docker, "--host", self.host) if self.host else (self.docker,)


def container_name(run_id: str, node_index: int) -> str:
    """The name of a run's container on a node: several nodes may share one engine."""
    return f"cloudgpu-{run_id}-{node_index}"


def pid_file(name: str) -> str:
    """Where the number of a program's process group stands, as seen inside the container."""
    return f"{INSIDE}/{name}.pid"


def exec_line(
    engine: Engine,
    container: str,
    argv: Sequence[str],
    *,
    workdir: str,
    pid_file: str = "",
    env_file: str = "",
    interactive: bool = False,
) -> tuple[str, ...]:
    """The `docker exec` line that runs a program in a container that is there.

    Args:
        engine: Whose container it is.
        container: Its name.
        argv: The program with its arguments, without a shell.
        workdir: Working directory inside the container.
        pid_file: Where the program's process group is to be written, inside the container; empty for nowhere.
        env_file: File of variables' names on the node; their values are those that the client itself finds in its
            environment, so that none stands in a command line or on a disk.
        interactive: Pass standard input on.
    """
    options = ("--interactive",) if interactive else ()
    names = ("--env-file", env_file) if env_file else ()
    entered = ("sh", "-c", _ENTER, "cloudgpu", pid_file) if pid_file else ()
    return (*engine.client, "exec", *options, "--workdir", workdir, *names, container, *entered, *argv)
