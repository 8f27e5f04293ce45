"""Build OpenSSH command lines that trust only a node's verified host key."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.launch.inventory import Node
from cloudgpu.paths import unwritable_error


@dataclass(frozen=True)
class ServerKey:
    """A complete host key. A `known_hosts` file needs the key itself, not just the fingerprint."""

    kind: str
    """Key type, for example `ssh-ed25519`."""
    base64: str

    def known_hosts_line(self, node: Node) -> str:
        """Return the `known_hosts` line for the node's address and port."""
        name = node.address if node.port == _DEFAULT_PORT else f"[{node.address}]:{node.port}"
        return f"{name} {self.kind} {self.base64}\n"


_DEFAULT_PORT = 22


def write_known_hosts(path: Path, node: Node, key: ServerKey) -> Path:
    """Atomically write the `known_hosts` file for `ssh_argv`, readable only by its owner, and return the path.

    Raises:
        StateError: The file cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(key.known_hosts_line(node))
        Path(temporary).replace(path)
    except OSError as err:
        raise unwritable_error(path, err) from err
    return path


@dataclass(frozen=True)
class JumpNode:
    """A jump node and the file that pins its host key."""

    node: Node
    known_hosts: Path


def ssh_argv(
    node: Node,
    *,
    key: Path,
    known_hosts: Path,
    command: Sequence[str] = (),
    gate: JumpNode | None = None,
    proxy: Sequence[str] = (),
) -> list[str]:
    """Return the `ssh` argument vector that connects to this node.

    Args:
        node: Node to connect to.
        key: Private key, unless the node has a `key` of its own. Other keys and the SSH agent are not used.
        known_hosts: File written by `write_known_hosts`. The user's and the system's `known_hosts` are ignored.
        command: Remote command; empty starts an interactive shell.
        gate: Jump node or jump host, if any; its host key is pinned as well.
        proxy: Proxy command for a node that is not reachable over TCP. Ignored if `gate` is set.
    """
    key = Path(node.key) if node.key else key
    destination = f"{node.user}@{node.address}"
    proxy_command = proxy_through(gate, key) if gate else shlex.join(proxy).replace("%", "%%")
    proxy_flags = ["-o", f"ProxyCommand={proxy_command}"] if proxy_command else []
    flags = [*_flags(known_hosts), *proxy_flags, "-p", str(node.port)]
    return ["ssh", "-i", str(key), *flags, destination, *(("--", *command) if command else ())]


def proxy_through(gate: JumpNode, key: Path) -> str:
    """Return the `ProxyCommand` that connects through a jump node.

    `ProxyJump` is not suitable, because it applies the key and the known hosts only to the last hop.
    """
    node = gate.node
    argv = ["ssh", "-i", str(key), *_flags(gate.known_hosts), "-p", str(node.port), f"{node.user}@{node.address}"]
    # OpenSSH expands `%` in the command and passes the result to a shell.
    return shlex.join(argv).replace("%", "%%") + " -W %h:%p"


def _flags(known_hosts: Path) -> list[str]:
    options = (
        f"UserKnownHostsFile={_quoted(known_hosts)}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "ServerAliveInterval=15",
    )
    return [part for option in options for part in ("-o", option)]


def _quoted(path: Path) -> str:
    """Quote a path for an option that takes a list of files and expands `%`."""
    return '"' + str(path).replace("%", "%%") + '"'
