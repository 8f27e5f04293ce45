"""The user's jump host. Its host key comes from pinned fingerprints or from the user's `known_hosts` files."""

from collections.abc import Sequence
from pathlib import Path

import paramiko

from cloudgpu.errors import HostKeyError
from cloudgpu.files import KNOWN_HOSTS_BYTES, read_bytes
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.keys import fingerprint
from cloudgpu.text import command

_SSH_PORT = 22
_REVOKED = "@revoked"
_BASTION = -1
"""Node index of the jump host, which is not a node of the cluster."""


def bastion(address: str, known_hosts: Sequence[Path], pinned: tuple[str, ...] = (), key: str = "") -> Node:
    """Return the jump host at the address `user@host` or `user@host:port`.

    Args:
        address: Login user, host name or IP address, and optional port.
        known_hosts: Files that contain the jump host's keys. Used only if `pinned` is empty.
        pinned: Fingerprints of the jump host's keys.
        key: Path of the private key; empty for the caller's default key.

    Raises:
        HostKeyError: The `known_hosts` files contain no key of the jump host, or cannot be read.
    """
    user, _, server = address.partition("@")
    host, port = _split(server)
    keys = pinned or known_keys(host, port, known_hosts)
    if not keys:
        where = " or ".join(str(path) for path in known_hosts)
        connect = command("ssh", *([] if port == _SSH_PORT else ["-p", str(port)]), f"{user}@{host}")
        message = f"the host key of the bastion {host}:{port} is not in {where}"
        raise HostKeyError(message, hint=f"connect once with `{connect}`, and verify the fingerprint")
    return Node(_BASTION, "bastion", host, port, user, keys, host, "", "", "", 0, simulated=False, key=key)


def known_keys(address: str, port: int, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the fingerprints of all keys of a host in `known_hosts` files, without revoked keys.

    Raises:
        HostKeyError: A file cannot be read.
    """
    return _fingerprints(address if port == _SSH_PORT else f"[{address}]:{port}", files)


def _split(server: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port` into host and port."""
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        return host, int(rest.removeprefix(":") or _SSH_PORT)
    host, _, port = server.partition(":")
    return host, int(port or _SSH_PORT)


def _fingerprints(name: str, files: Sequence[Path]) -> tuple[str, ...]:
    """Return a host's fingerprints. Entries with a hashed host name are included."""
    known, revoked = [], set()
    for line in (line for path in files if path.is_file() for line in _lines(path)):
        marker, _, rest = line.partition(" ") if line.startswith("@") else ("", "", line)
        entry = _entry(rest)
        if entry is None or marker not in ("", _REVOKED):
            continue  # `@cert-authority`: the key signs host keys but is not a host key
        if marker == _REVOKED:
            revoked.add(fingerprint(entry.key.asbytes()))
            continue
        if _is_of(entry, name):
            known.append(fingerprint(entry.key.asbytes()))
    return tuple(pin for pin in dict.fromkeys(known) if pin not in revoked)


def _is_of(entry: paramiko.hostkeys.HostKeyEntry, name: str) -> bool:
    # Each host name gets a collection of its own: a collection keeps one key per type and drops the others.
    for host in entry.hostnames:
        keys = paramiko.HostKeys()
        keys.add(host, entry.key.get_name(), entry.key)
        if keys.lookup(name):
            return True
    return False


def _lines(path: Path) -> list[str]:
    try:
        return read_bytes(path, KNOWN_HOSTS_BYTES).decode(errors="replace").splitlines()
    except OSError as err:
        message = f"cannot read the known host keys in {path}: {err.strerror}"
        raise HostKeyError(
            message, hint=f"check the permissions with `{command('ls', '-l', str(path))}`, or move the file elsewhere"
        ) from err


def _entry(line: str) -> paramiko.hostkeys.HostKeyEntry | None:
    """Parse one line; return None for a comment, a malformed line or a key that paramiko cannot read."""
    try:
        return None if line.lstrip().startswith("#") else paramiko.hostkeys.HostKeyEntry.from_line(line)
    except (paramiko.hostkeys.InvalidHostKey, paramiko.SSHException):
        return None
