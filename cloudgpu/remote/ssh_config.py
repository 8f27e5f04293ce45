"""Entries for OpenSSH's own configuration: a node by its name, with its pinned key and the way to it. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.launch.inventory import Node
from cloudgpu.remote.ssh_command import Gate, proxy_through


@dataclass(frozen=True)
class Entry:
    """One node, as OpenSSH is to know it.

    Attributes:
        names: What it is called, as in `ssh lab-0`.
        known_hosts: The file that pins its key.
        gate: The node or jump host before it, where there is one.
        proxy: A command whose standard input and output lead to it, where nothing else does.
    """

    names: tuple[str, ...]
    node: Node
    known_hosts: Path
    gate: Gate | None = None
    proxy: tuple[str, ...] = ()


def rendered(entries: Sequence[Entry], key: Path, heading: Sequence[str]) -> str:
    """The whole file."""
    blocks = ["\n".join(_block(one, key)) for one in entries]
    return "\n\n".join(["\n".join(f"# {line}" for line in heading), *blocks]) + "\n"


def included(pattern: Path) -> str:
    """The line of a user's own configuration that takes our files in."""
    return f"Include {_quoted(str(pattern))}"


def _block(entry: Entry, key: Path) -> list[str]:
    key = Path(entry.node.key) if entry.node.key else key
    carried = _carried(entry, key)
    options = [
        ("HostName", entry.node.address),
        ("Port", str(entry.node.port)),
        ("User", entry.node.user),
        ("IdentityFile", _path(key)),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("UserKnownHostsFile", _path(entry.known_hosts)),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("ServerAliveInterval", "15"),
        *([("ProxyCommand", carried)] if carried else []),
    ]
    return [f"Host {' '.join(entry.names)}", *(f"    {name} {value}" for name, value in options)]


def _carried(entry: Entry, key: Path) -> str:
    return proxy_through(entry.gate, key) if entry.gate else shlex.join(entry.proxy).replace("%", "%%")


def _path(path: Path) -> str:
    """A file: OpenSSH expands `%` in it, and takes a space for the end of its name."""
    return _quoted(str(path).replace("%", "%%"))


def _quoted(text: str) -> str:
    return f'"{text}"' if set(text) & set(' \t#"') else text
