"""Render OpenSSH configuration entries for nodes, with pinned host keys and jump hosts."""

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.openssh_command import JumpNode, escaped_command, option_path, proxy_through

_PLAIN_INCLUDE: Final = re.compile(r"""[^%*?"'\[\]{}\\$\n\r\0]+""")
"""Path that every version of OpenSSH reads unchanged in `Include`, which also matches file names with patterns."""


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
