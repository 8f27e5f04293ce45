"""Interface for running a node's processes, either in namespaces (a cage) or as plain processes."""

import signal
from collections.abc import Callable
from typing import Protocol

from cloudgpu.rehearsal.nodes.boot.base_image import Layer


class NodeRuntime(Protocol):
    """The runtime of one simulated node's processes on this machine."""

    @property
    def layer(self) -> Layer:
        """Location of the node's files, on this machine and inside the node."""

    @property
    def process(self) -> tuple[int, int]:
        """Pid and start time of the init, or (0, 0) if there is no init."""

    def environment(self) -> dict[str, str]:
        """Return the environment variables for the node's processes."""

    def home(self, user: str) -> str:
        """Return the login user's home directory as seen inside the node."""

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """Return a command that runs `argv` in the node. Set `terminal` if standard input is the node's terminal."""

    def entering(self) -> list[str]:
        """Return the prefix of a command that the host runs inside the node with the host's privileges.

        The prefix is empty if the node has no namespaces.
        """

    @property
    def take_terminal(self) -> Callable[[], None] | None:
        """Function that a new process calls to acquire its terminal, or None if `command` includes that step."""

    def open_terminal(self) -> tuple[int, int]:
        """Open a new pseudo-terminal of the node. Return its master and slave descriptors.

        Raises:
            OSError: No terminal is available.
        """

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to the process group of a command started with `command`, unless the command has exited."""

    def limit_home(self, kib: int) -> None:
        """Limit the size of the login user's home directory from the next boot on. No effect without namespaces."""

    async def power_on(self) -> None:
        """Prepare to run processes.

        Raises:
            RehearsalError: The machine does not permit namespaces, or the init did not become ready in time.
        """

    def adopt(self, process: tuple[int, int]) -> bool:
        """Take over the init that an earlier host process started. Return False if the init has exited."""

    async def ended(self) -> None:
        """Wait until the node's init exits, or forever if there is no init."""

    async def power_off(self) -> None:
        """Kill every process of the node. Return once all processes have exited.

        Raises:
            RehearsalError: A process did not exit.
        """
