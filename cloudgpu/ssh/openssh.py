"""Build OpenSSH command lines and configuration that trust only the nodes' verified host keys."""

import os
import pwd
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.files import make_private_directory
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import unwritable_error
from cloudgpu.ssh.command import portable_line
from cloudgpu.text import openssh_path

_DEFAULT_PORT = 22
_PLAIN_INCLUDE: Final = re.compile(r"""[^%*?"'\[\]{}\\$\n\r\0]+""")
"""Path that every version of OpenSSH reads unchanged in `Include`, which also matches file names with patterns."""


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


def write_known_hosts(path: Path, node: Node, key: ServerKey) -> Path:
    """Atomically write the `known_hosts` file for `ssh_argv`, readable only by its owner, and return the path."""
    try:
        make_private_directory(path.parent)
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
    proxy_command = proxy_through(gate, key, node) if gate else escaped_command(proxy)
    proxy_flags = ["-o", f"ProxyCommand={proxy_command}"] if proxy_command else []
    return ["ssh", *_flags(key, known_hosts), *proxy_flags, *_destination(node), *(("--", *command) if command else ())]


def proxy_through(gate: JumpNode, key: Path, to: Node) -> str:
    """Return the `ProxyCommand` that connects to a node through a jump node.

    `ProxyJump` is not suitable, because it applies the key and the known hosts only to the last hop.
    """
    flags = [*_flags(key, gate.known_hosts), *_destination(gate.node)]
    address = f"[{to.address}]" if ":" in to.address else to.address
    return escaped_command(["ssh", *flags, "-W", f"{address}:{to.port}"])


def escaped_command(argv: Sequence[str]) -> str:
    """Return a command as the value of `ProxyCommand`, which expands `%` and passes the result to the login shell."""
    return portable_line(argv).replace("%", "%%")


def option_path(path: Path) -> str:
    """Return the path of a file on this machine as the value of an OpenSSH option."""
    return openssh_path(str(path.absolute()))


def _destination(node: Node) -> list[str]:
    return ["-p", str(node.port), f"{node.user}@{node.address}"]


def _flags(key: Path, known_hosts: Path) -> list[str]:
    options = (
        # Unlike `-i`, this option does not warn about a path in which `%` is escaped.
        f"IdentityFile={option_path(key)}",
        f"UserKnownHostsFile={option_path(known_hosts)}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "ServerAliveInterval=15",
    )
    return [part for option in options for part in ("-o", option)]


@dataclass(frozen=True)
class HostEntry:
    """A `Host` entry of an OpenSSH configuration.

    Attributes:
        names: Host aliases, as in `ssh lab-0`.
        known_hosts: File that pins the node's host key.
        gate: Jump node or jump host, if any.
        proxy: Proxy command, for a node that is not reachable over TCP.
    """

    names: tuple[str, ...]
    node: Node
    known_hosts: Path
    gate: JumpNode | None = None
    proxy: tuple[str, ...] = ()


def render_config(entries: Sequence[HostEntry], key: Path, heading: Sequence[str]) -> str:
    """Return the content of the configuration file, with the lines of `heading` as comments at the top."""
    blocks = ["\n".join(_line(line) for line in _block(entry, key)) for entry in entries]
    return "\n\n".join(["\n".join(_line(f"# {line}") for line in heading), *blocks]) + "\n"


def include_line(pattern: Path) -> str:
    """Return the `Include` line for the user's OpenSSH configuration."""
    text = str(pattern.absolute())
    if _PLAIN_INCLUDE.fullmatch(text.removesuffix("/*")):
        return f"Include {_quoted(text)}"
    # Relative patterns start at ~/.ssh. Newer versions expand `%` in absolute ones, and older versions do not.
    if pattern.parent.parent != Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh":
        message = f"an OpenSSH configuration cannot include {text}, because of the characters in this path"
        raise StateError(
            message, hint="print the entries with `cloudgpu ssh-config NAME --print` and add them yourself"
        )
    return f"Include {pattern.relative_to(pattern.parent.parent)}"


def _block(entry: HostEntry, key: Path) -> list[str]:
    key = Path(entry.node.key) if entry.node.key else key
    proxy_command = _proxy_command(entry, key)
    options = [
        ("HostName", _word(entry.node.address)),
        ("Port", str(entry.node.port)),
        ("User", _word(entry.node.user)),
        ("IdentityFile", option_path(key)),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("UserKnownHostsFile", option_path(entry.known_hosts)),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("ServerAliveInterval", "15"),
        *([("ProxyCommand", proxy_command)] if proxy_command else []),
    ]
    return [
        f"Host {' '.join(_word(name) for name in entry.names)}",
        *(f"    {name} {value}" for name, value in options),
    ]


def _proxy_command(entry: HostEntry, key: Path) -> str:
    if entry.gate:
        return proxy_through(entry.gate, key, entry.node)
    return escaped_command([_line(word) for word in entry.proxy])


def _line(text: str) -> str:
    return _checked(text, "\n\r\0")


def _word(text: str) -> str:
    return _checked(text, '\n\r\0\t "')


def _checked(text: str, forbidden: str) -> str:
    """Return the text, or raise an error if OpenSSH would read it as more than one value."""
    if set(text) & set(forbidden):
        message = f"{text!r} contains characters that an OpenSSH configuration does not allow"
        raise StateError(message, hint="use a name without these characters, or connect with `cloudgpu ssh`")
    return text


def _quoted(text: str) -> str:
    return f'"{text}"' if set(text) & set(" \t#") else text
