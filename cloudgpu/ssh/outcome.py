"""How nodes are named and how a command's bad end is told."""

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import Result
from cloudgpu.text import command


class TimeLimitError(ConnectError):
    """A command was given up because it took too long; the connection is still there."""


STILL_THERE = "check that the node still runs: `cloudgpu status --refresh`"
"""The hint of a connection that broke, for nodes of a cloud."""


def still_there(node: Node) -> str:
    """Return what to look at once a connection broke. No cloud tells of your own host: only logging in does."""
    if not node.own:
        return STILL_THERE
    return f"log in to see whether it still works: {log_in(node)}"


def log_in(node: Node) -> str:
    """Return the command that logs in to a node."""
    return command("ssh", "-p", str(node.port), f"{node.user}@{node.address}")


def describe(node: Node) -> str:
    """Return how messages name a node: your own host by its name in the inventory too."""
    what = f"node {node.index}" if node.index >= 0 else "the jump host"
    name = f"{node.zone}, " if node.own and node.zone else ""
    return f"{what} ({name}{node.user}@{node.address}:{node.port})"


def checked(result: Result) -> Result:
    """The result, if the command ended well.

    Raises:
        RemoteCommandError: It did not; names the command and shows its last lines.
    """
    if result.ok:
        return result
    raise RemoteCommandError(
        f"{result.host}: `{result.shown}` ended with exit code {result.exit_code}",
        tail=result.tail(),
        hint="log in and look: `cloudgpu ssh`",
    )
