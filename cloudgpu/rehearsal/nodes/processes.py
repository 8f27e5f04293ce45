"""What carries a node's processes: a cage of namespaces, or plain processes told apart by their environment."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cloudgpu.rehearsal.nodes.boot.base_image import Layer


class Body(Protocol):
    """The machine side of one node."""

    @property
    def layer(self) -> Layer:
        """Where the node's files lie and how it sees them."""

    @property
    def process(self) -> tuple[int, int]:
        """Number and start time of the init, to find it again; (0, 0) where there is none."""

    def environment(self) -> dict[str, str]:
        """The variables that every process of the node starts with."""

    def home(self, user: str) -> str:
        """The login user's home as the node sees it."""

    def command(self, argv: list[str], *, cwd: str, terminal: bool) -> list[str]:
        """What to run on the machine so that `argv` runs in the node, with a terminal as its own if there is one."""

    def entering(self) -> list[str]:
        """What stands before a command that this host carries out in the node, with rights that nobody there has.

        Empty where the node has no namespaces.
        """

    @property
    def take_terminal(self) -> Callable[[], None] | None:
        """What a new process must do to get its terminal, where `command` does not do it."""

    def open_terminal(self) -> tuple[int, int]:
        """A new pseudo-terminal of the node: master and slave descriptors.

        Raises:
            OSError: None is left.
        """

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Signal the process group of a command that was started from `command`; gone ones are ignored."""

    def limit_home(self, kib: int) -> None:
        """At the next boot the login user's home has room for so much; where there are no namespaces, for more."""

    async def power_on(self) -> None:
        """Get ready to run processes.

        Raises:
            RehearsalError: The machine does not permit it.
        """

    def adopt(self, process: tuple[int, int]) -> bool:
        """Take over what an earlier host powered on; False when it is gone."""

    async def ended(self) -> None:
        """Wait until the node's init ends; for ever where there is none."""

    async def power_off(self) -> None:
        """Kill every process; returns when all are dead.

        Raises:
            RehearsalError: Some are not.
        """

    def resident_files(self) -> list[Path]:
        """The `/proc` folders of every process of the node that can be seen."""
