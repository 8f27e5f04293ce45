"""Read a server's host key without logging in, so that the user can compare the fingerprint."""

from collections.abc import Callable
from dataclasses import dataclass

from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.handshake import Opened, exchange_keys, open_socket
from cloudgpu.ssh.proxies import TcpConnector


@dataclass(frozen=True)
class ShownKey:
    """The host key presented by a server."""

    kind: str
    """Key type, for example `ssh-ed25519`."""
    fingerprint: str
    """Fingerprint in the form `SHA256:...`."""


def shown_key(node: Node, via: TcpConnector | None, *, timeout_s: float = 10.0) -> ShownKey:
    """Return the host key that the node's SSH server presents. The key is not verified.

    If the server has keys of several types, this is the key of the type that cloudgpu prefers.
    """
    link = exchange_keys(node, _opener(node, via)(timeout_s), timeout_s)
    try:
        key = link.get_remote_server_key()
        return ShownKey(key.get_name(), key.fingerprint)
    finally:
        link.hang_up()


def _opener(node: Node, via: TcpConnector | None) -> Callable[[float], Opened]:
    if via is None:
        return lambda timeout_s: open_socket(node, timeout_s)
    return lambda timeout_s: via.open_tcp(node.address, node.port, timeout_s)
