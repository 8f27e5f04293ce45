"""The user's jump host: its address comes from the settings, its host key from the user's `known_hosts` files."""

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
    """Return the jump host for the address `user@host` or `user@host:port`.

    Its host key is pinned to the fingerprints in `pinned` or, if there are none, to the keys in `known_hosts`.

    Raises:
        HostKeyError: No host key of the jump host is known, or a file cannot be read.
    """
    user, _, server = address.partition("@")
    host, port = _split(server)
    keys = pinned or known_keys(host, port, known_hosts)
    if not keys:
        where = " or ".join(str(path) for path in known_hosts)
        connect = command("ssh", *([] if port == _SSH_PORT else ["-p", str(port)]), f"{user}@{host}")
        message = f"the host key of the bastion {host}:{port} is not in {where}"
        raise HostKeyError(message, hint=f"connect once with `{connect}`, and compare the fingerprint")
    return Node(_BASTION, "bastion", host, port, user, keys, host, "", "", "", 0, simulated=False, key=key)


def known_keys(address: str, port: int, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the fingerprints that these files contain for a host."""
    return _fingerprints(address if port == _SSH_PORT else f"[{address}]:{port}", files)


def _split(server: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port` into host and port."""
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        return host, int(rest.removeprefix(":") or _SSH_PORT)
    host, _, port = server.partition(":")
    return host, int(port or _SSH_PORT)


def _fingerprints(name: str, files: Sequence[Path]) -> tuple[str, ...]:
    """Return the fingerprints for a plain or hashed name, excluding revoked keys."""
    known, revoked = paramiko.HostKeys(), set()
    for line in (line for path in files if path.is_file() for line in _lines(path)):
        marker, _, rest = line.partition(" ") if line.startswith("@") else ("", "", line)
        entry = _entry(rest)
        if entry is None or marker not in ("", _REVOKED):
            continue  # `@cert-authority`: the key signs host keys but is not a host key
        if marker == _REVOKED:
            revoked.add(fingerprint(entry.key.asbytes()))
            continue
        for host in entry.hostnames:
            known.add(host, entry.key.get_name(), entry.key)
    fingerprints = [fingerprint(key.asbytes()) for key in (known.lookup(name) or {}).values()]
    return tuple(pin for pin in dict.fromkeys(fingerprints) if pin not in revoked)


def _lines(path: Path) -> list[str]:
    try:
        return read_bytes(path, KNOWN_HOSTS_BYTES).decode(errors="replace").splitlines()
    except OSError as err:
        message = f"cannot read the known host keys in {path}: {err.strerror}"
        raise HostKeyError(
            message, hint=f"check its permissions with `{command('ls', '-l', str(path))}`, or move the file away"
        ) from err


def _entry(line: str) -> paramiko.hostkeys.HostKeyEntry | None:
    """Parse one line; return None for a comment or a key that paramiko cannot read."""
    try:
        return None if line.lstrip().startswith("#") else paramiko.hostkeys.HostKeyEntry.from_line(line)
    except (paramiko.hostkeys.InvalidHostKey, paramiko.SSHException):
        return None
