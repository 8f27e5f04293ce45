"""Command lines of the real OpenSSH client, bound to a node's verified host key."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.launch.inventory import Node
from cloudgpu.paths import unwritable


@dataclass(frozen=True)
class ServerKey:
    """A host key, whole. Fingerprints alone cannot fill a `known_hosts` file."""

    kind: str
    """Its type, for instance `ssh-ed25519`."""
    base64: str

    def known_hosts_line(self, node: Node) -> str:
        """The line that binds the key to the node's address and port."""
        name = node.address if node.port == _DEFAULT_PORT else f"[{node.address}]:{node.port}"
        return f"{name} {self.kind} {self.base64}\n"


_DEFAULT_PORT = 22


def write_known_hosts(path: Path, node: Node, key: ServerKey) -> Path:
    """Write the file that `ssh_argv` names, in one step, readable by the owner only.

    Raises:
        StateError: It cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(key.known_hosts_line(node))
        Path(temporary).replace(path)
    except OSError as err:
        raise unwritable(path, err) from err
    return path


@dataclass(frozen=True)
class Gate:
    """The node through which another one is reached, and the file that pins its host key."""

    node: Node
    known_hosts: Path


def ssh_argv(
    node: Node,
    *,
    key: Path,
    known_hosts: Path,
    command: Sequence[str] = (),
    gate: Gate | None = None,
    proxy: Sequence[str] = (),
) -> list[str]:
    """The argument vector of an `ssh` that reaches this node and no other host.

    Args:
        node: Where to.
        key: Our private key; no other key and no agent is offered.
        known_hosts: As `write_known_hosts` made it; the user's and the system's own are left alone.
        command: What to run there; without one, an interactive shell.
        gate: The node or jump host before it, where there is one; its key is pinned as well.
        proxy: A command whose standard input and output lead to it, where nothing else does.
    """
    key = Path(node.key) if node.key else key
    where = f"{node.user}@{node.address}"
    carried = proxy_through(gate, key) if gate else shlex.join(proxy).replace("%", "%%")
    through = ["-o", f"ProxyCommand={carried}"] if carried else []
    flags = [*_flags(known_hosts), *through, "-p", str(node.port)]
    return ["ssh", "-i", str(key), *flags, where, *(("--", *command) if command else ())]


def proxy_through(gate: Gate, key: Path) -> str:
    """The command that leads through another node, for OpenSSH's `ProxyCommand`.

    `ProxyJump` would take neither this key nor these known hosts: they hold for the last hop alone.
    """
    node = gate.node
    argv = ["ssh", "-i", str(key), *_flags(gate.known_hosts), "-p", str(node.port), f"{node.user}@{node.address}"]
    # OpenSSH expands `%` in the command and gives it to a shell.
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
    """The option holds a list of files and expands `%`; a home with a space or a percent sign must stay one name."""
    return '"' + str(path).replace("%", "%%") + '"'
