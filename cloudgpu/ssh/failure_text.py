"""Error message texts: node labels, hints for lost connections, and errors for failed commands."""

from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import Result
from cloudgpu.text import command


class TimeLimitError(ConnectError):
    """A command exceeded its time limit. The connection is still usable."""


_UNRESOLVED = ("not known", "name resolution", "No address associated", "nodename nor servname")
"""Parts of the texts with which systems report a name that does not resolve."""
CHECK_NODE_HINT = "check that the node is still running: `cloudgpu status --refresh`"
"""Hint for a lost connection to a cloud node."""


def lost_connection_hint(node: Node) -> str:
    """Return the hint for a lost connection: check the node's status, or log in if the host is self-managed."""
    if not node.own:
        return CHECK_NODE_HINT
    return f"check that you can log in: {login_command(node)}"


def login_command(node: Node) -> str:
    """Return the command that logs in to a node."""
    return command("ssh", "-p", str(node.port), f"{node.user}@{node.address}")


def node_label(node: Node) -> str:
    """Return a node's label for messages. For a self-managed host, the label includes its name in the inventory."""
    what = f"node {node.index}" if node.index >= 0 else "the jump host"
    name = f"{node.zone}, " if node.own and node.zone else ""
    return f"{what} ({name}{node.user}@{node.address}:{node.port})"


def refused_connection(node: Node, to: str, reason: str, *, prohibited: bool) -> tuple[str, str]:
    """Return the message and hint for a connection that a node or jump host did not open for the caller."""
    who = node_label(node)
    if prohibited:
        where = "jump host" if node.index < 0 else "node"
        hint = (
            f"in the {where}'s sshd_config, set `AllowTcpForwarding yes` and remove a `DisableForwarding` or a "
            "`PermitOpen` that prevents it; its authorized_keys must not have `restrict` for this key"
        )
        return f"{who} cannot connect to {to}: it prohibits forwarding ({reason})", hint
    message = f"{who} cannot connect to {to}: {reason}"
    if any(words in reason for words in _UNRESOLVED):
        return message, f"use an address that resolves on {'the jump host' if node.index < 0 else 'the node'}"
    if node.own or node.index < 0:
        return message, "check that a program listens there, and that no firewall between the two hosts blocks it"
    return message, "check that a program listens there, and that the security group allows the connection"


def require_success(result: Result) -> Result:
    """Return the result if the command succeeded."""
    if result.ok:
        return result
    raise RemoteCommandError(
        f"{result.host}: `{result.shown}` failed with exit code {result.exit_code}",
        tail=result.tail(),
        hint="log in to investigate: `cloudgpu ssh`",
    )
