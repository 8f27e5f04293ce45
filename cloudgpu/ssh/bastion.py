"""The user's jump host. Its host key comes from pinned fingerprints or from the user's `known_hosts` files."""

from collections.abc import Sequence
from pathlib import Path

from cloudgpu.errors import HostKeyError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.known_hosts import SSH_PORT, authority_note, known_keys
from cloudgpu.text import command

_BASTION = -1
"""Node index of the jump host, which is not a node of the cluster."""


def bastion(address: str, known_hosts: Sequence[Path], pinned: tuple[str, ...] = (), key: str = "") -> Node:
    """Return the jump host at the address `user@host` or `user@host:port`.

    Args:
        address: Login user, host name or IP address, and optional port.
        known_hosts: Files that contain the jump host's keys. Used only if `pinned` is empty.
        pinned: Fingerprints of the jump host's keys.
        key: Path of the private key; empty for the caller's default key.
    """
    user, _, server = address.partition("@")
    host, port = _split(server)
    keys = pinned or known_keys(host, port, known_hosts)
    if not keys:
        where = " or ".join(str(path) for path in known_hosts if path.is_file()) or str(known_hosts[0])
        connect = command("ssh", *([] if port == SSH_PORT else ["-p", str(port)]), f"{user}@{host}")
        note = authority_note(host, port, known_hosts)
        message = f"the host key of the bastion {host}:{port} is not in {where}{note}"
        raise HostKeyError(message, hint=f"connect once with `{connect}`, and verify the fingerprint")
    return Node(_BASTION, "bastion", host, port, user, keys, host, "", "", "", 0, simulated=False, key=key)


def _split(server: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port` into host and port."""
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        return host, int(rest.removeprefix(":") or SSH_PORT)
    host, _, port = server.partition(":")
    return host, int(port or SSH_PORT)
