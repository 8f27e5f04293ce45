"""Entries for OpenSSH's own configuration: a node by its name, with its pinned key and the way to it. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.openssh_command import Gate, proxy_through


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
    """The whole file.

    Raises:
        StateError: A value would end its line, and what follows it would be an option of its own.
    """
    blocks = ["\n".join(_line(line) for line in _block(one, key)) for one in entries]
    return "\n\n".join(["\n".join(_line(f"# {line}") for line in heading), *blocks]) + "\n"


def included(pattern: Path) -> str:
    """The line of a user's own configuration that takes our files in.

    Raises:
        StateError: The pattern cannot be written down.
    """
    return f"Include {_quoted(str(pattern))}"


def _block(entry: Entry, key: Path) -> list[str]:
    key = Path(entry.node.key) if entry.node.key else key
    carried = _carried(entry, key)
    options = [
        ("HostName", _word(entry.node.address)),
        ("Port", str(entry.node.port)),
        ("User", _word(entry.node.user)),
        ("IdentityFile", _path(key)),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("UserKnownHostsFile", _path(entry.known_hosts)),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        ("ServerAliveInterval", "15"),
        *([("ProxyCommand", carried)] if carried else []),
    ]
    return [
        f"Host {' '.join(_word(name) for name in entry.names)}",
        *(f"    {name} {value}" for name, value in options),
    ]


def _carried(entry: Entry, key: Path) -> str:
    return proxy_through(entry.gate, key) if entry.gate else shlex.join(entry.proxy).replace("%", "%%")


def _path(path: Path) -> str:
    """A file: OpenSSH expands `%` in it, and takes a space for the end of its name."""
    return _quoted(str(path).replace("%", "%%"))


def _line(text: str) -> str:
    return _checked(text, "\n\r\0")


def _word(text: str) -> str:
    return _checked(text, '\n\r\0\t "')


def _checked(text: str, forbidden: str) -> str:
    """Return the text, unless OpenSSH would read more than one value in it."""
    if set(text) & set(forbidden):
        message = f"{text!r} cannot be written into an OpenSSH configuration"
        raise StateError(message, hint="`cloudgpu ssh` needs no configuration; else use names without such characters")
    return text


def _quoted(text: str) -> str:
    _checked(text, '\n\r\0"')
    return f'"{text}"' if set(text) & set(' \t#"') else text
