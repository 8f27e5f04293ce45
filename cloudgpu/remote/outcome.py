"""How nodes are named and how a command's bad end is told."""

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.remote.base import Result


class TimeLimitError(ConnectError):
    """A command was given up because it took too long; the connection is still there."""


STILL_THERE = "check that the node still runs: `cloudgpu status --refresh`"
"""The hint of every connection that broke."""


def describe(node: Node) -> str:
    """How messages name a node."""
    what = f"node {node.index}" if node.index >= 0 else "the jump host"
    return f"{what} ({node.user}@{node.address}:{node.port})"


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
