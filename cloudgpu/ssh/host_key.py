"""The host key that a server shows, for a person to compare; nobody logs in, and only keys are exchanged."""

from collections.abc import Callable
from dataclasses import dataclass

from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.carrier import Carrier
from cloudgpu.ssh.handshake import Opened, exchanged, open_socket


@dataclass(frozen=True)
class ShownKey:
    """A host key as its server shows it."""

    kind: str
    """`ssh-ed25519` ..."""
    fingerprint: str
    """`SHA256:...`."""


def shown_key(node: Node, via: Carrier | None, *, timeout_s: float = 10.0) -> ShownKey:
    """The key that the server at this address prefers.

    Raises:
        ConnectError: It cannot be reached, or does not speak SSH.
    """
    link = exchanged(node, _opener(node, via)(timeout_s), timeout_s)
    try:
        key = link.get_remote_server_key()
        return ShownKey(key.get_name(), key.fingerprint)
    finally:
        link.hang_up()


def _opener(node: Node, via: Carrier | None) -> Callable[[float], Opened]:
    if via is None:
        return lambda timeout_s: open_socket(node, timeout_s)
    return lambda timeout_s: via.open_tcp(node.address, node.port, timeout_s)
