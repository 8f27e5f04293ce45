"""Files to and from a node: whole trees, only what differs, each file put in place in one step."""

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from cloudgpu.errors import RemoteCommandError, StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import unwritable
from cloudgpu.remote import node_tree
from cloudgpu.remote.base import Result
from cloudgpu.remote.command import Command
from cloudgpu.remote.contents import Contents
from cloudgpu.remote.landing import Arriving, Landing, trusted
from cloudgpu.remote.node_tree import MARK, Entry, entry_at, same
from cloudgpu.remote.outcome import describe
from cloudgpu.remote.patterns import regexes

_ROUNDS = 3
_HEADER_BYTES = 8
_NOT_FOUND = 127
_PROGRAM = Path(node_tree.__file__).read_bytes()
_LOADER = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'node_tree', 'exec'))"
_PUT = """
case "$1" in "~/"*) to=$HOME/${1#"~/"} ;; *) to=$1 ;; esac
case "$to" in */*) mkdir -p -- "${to%/*}/" || exit 1 ;; esac
part=$to.part.$$
umask 077
trap 'rm -f -- "$part"' EXIT
cat > "$part" || exit 1
[ "$(wc -c < "$part")" -eq "$2" ] || { echo "the transfer was cut off" >&2; exit 1; }
chmod "$3" "$part" && mv -f -- "$part" "$to"
"""
_GET = """
case "$1" in "~/"*) from=$HOME/${1#"~/"} ;; *) from=$1 ;; esac
printf '\\036cloudgpu\\036'
exec cat -- "$from"
"""


class Running(Protocol):
    """A started command."""

    stderr: bytearray

    @property
    def exit_code(self) -> int:
        """Its exit code, once the output has ended."""

    def output(self, timeout_s: float | None = None) -> Iterator[bytes]:
        """Standard output in pieces."""


class Carrier(Protocol):
    """What a transfer needs of a connection."""

    node: Node

    def try_run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Result:
        """Run it and wait."""

    def start(self, command: Command, stdin: bytes | Iterable[bytes] = b"") -> Running:
        """Start it."""


def put_bytes(host: Carrier, content: bytes, path: str, *, mode: int) -> None:
    """Write one file on the node. It is renamed into place only when every byte has arrived.

    Raises:
        RemoteCommandError: It cannot be written there.
    """
    command = Command("sh", "-c", _PUT, "sh", path, str(len(content)), f"{mode:o}")
    result = host.try_run(command, stdin=content)
    if not result.ok:
        raise _failed(host, f"cannot write {path}", result.exit_code, result.tail())


def get_file(host: Carrier, path: str, to: Path) -> None:
    """Fetch one file; `to` appears whole or not at all.

    Raises:
        RemoteCommandError: It cannot be read there.
        StateError: It cannot be written here.
    """
    running = host.start(Command("sh", "-c", _GET, "sh", path))
    try:
        with Landing(to.parent) as landing:
            arriving = Arriving(running.output())
            arriving.skip_past(MARK)
            landing.receive_all(arriving.pieces())
            if running.exit_code != 0:
                raise _broken(host, f"cannot read {path}", running)
            landing.place(to.name)
    except OSError as err:
        raise unwritable(to, err) from err


def send_tree(host: Carrier, source: Path, files: Sequence[str], to: str) -> int:
    """Make the remote directory hold exactly these files; returns the bytes of content that were sent.

    Files that change while they are read are sent again, a few times.

    Raises:
        StateError: A file cannot be read here, or does not hold still.
        RemoteCommandError: It cannot be written there.
    """
    sent = 0
    changed: list[str] = []
    for _ in range(_ROUNDS):
        manifest = manifest_of(source, files)
        wanted, extra = _plan(host, manifest, to)
        if not wanted and not extra:
            return sent
        contents = Contents(source, wanted)
        _apply(host, to, _message(manifest) + _message(wanted), contents)
        sent += contents.size_bytes
        changed = contents.changed
        if not changed:
            return sent
    raise StateError(
        f"{source} keeps changing while it is sent: {', '.join(changed[:3])}",
        hint="stop what writes there, or name those files in .cloudgpuignore",
    )


def claim_tree(host: Carrier, to: str) -> None:
    """Make a new or empty remote directory one that `send_tree` may change, whoever fills it until then.

    Raises:
        RemoteCommandError: It has contents that are not ours, or cannot be made.
    """
    _ask(host, _command("claim", to), b"", f"cannot write {to}")


def fetch_tree(host: Carrier, source: str, patterns: Sequence[str], to: Path) -> list[str]:
    """Fetch what matches and differs from what is here; returns every relative path that matches.

    Patterns are globs of whole paths below `source`; a directory that matches stands for all below it, and no pattern
    at all for everything. Names come from the node and are not trusted: none may lead out of `to`.

    Raises:
        UsageError: A pattern is not a glob.
        StateError: It cannot be written here, or a name would lead out of `to`.
        RemoteCommandError: It cannot be read there.
    """
    question = _message(regexes(patterns))
    answer = _ask(host, _command("list", source), question, f"cannot list {source}")
    entries = [trusted(describe(host.node), fields) for fields in (answer if isinstance(answer, list) else [answer])]
    root = os.fsencode(to)
    wanted = [entry for entry in entries if not same(entry, entry_at(root, os.fsencode(entry.path)))]
    if wanted:
        try:
            _receive(host, source, wanted, to)
        except OSError as err:
            raise unwritable(to, err) from err
    return [entry.path for entry in entries]


def manifest_of(source: Path, files: Sequence[str]) -> list[Entry]:
    """What a directory that holds exactly these files is compared by."""
    root = os.fsencode(source)
    entries = (entry_at(root, os.fsencode(name)) for name in files)
    return [entry for entry in entries if entry is not None]  # what is gone by now is not there to be sent


def _plan(host: Carrier, manifest: Sequence[Entry], to: str) -> tuple[list[Entry], int]:
    """Which entries are to be sent, and how much is there too much."""
    problem = f"cannot compare {to}"
    match _ask(host, _command("plan", to), _message(manifest), problem):
        case {"wanted": [*indices], "extra": int(extra)} if all(index in range(len(manifest)) for index in indices):
            return [manifest[index] for index in indices], extra
        case _:
            raise _senseless(host, problem)


def _ask(host: Carrier, command: Command, question: bytes, problem: str) -> object:
    """Run a verb whose answer is one message."""
    running = host.start(command, _PROGRAM + question)
    arriving = Arriving(running.output())
    arriving.skip_past(MARK)
    answer = arriving.rest()
    if running.exit_code != 0:
        raise _broken(host, problem, running)
    return _parsed(host, answer, problem)


def _apply(host: Carrier, to: str, header: bytes, contents: Contents) -> None:
    running = host.start(_command("apply", to), contents.after(_PROGRAM + header))
    for _ in running.output():
        pass
    if contents.problem is not None:
        raise StateError(
            f"cannot read {contents.problem.filename}: {contents.problem.strerror}",
            hint="make it readable, or name it in .cloudgpuignore",
        ) from contents.problem
    if running.exit_code != 0:
        raise _broken(host, f"cannot write {to}", running)


def _receive(host: Carrier, source: str, wanted: Sequence[Entry], to: Path) -> None:
    """Receive the contents, each put in place as soon as it is whole; links last, when their parents are there."""
    files = [entry for entry in wanted if entry.link is None]
    running = host.start(_command("read", source), _PROGRAM + _message(files))
    with Landing(to) as landing:
        arriving = Arriving(running.output())
        arriving.skip_past(MARK)
        whole = all(landing.receive(entry, arriving) for entry in files)
        trailer = arriving.rest()
        if running.exit_code != 0 or not whole:
            raise _broken(host, f"cannot read {source}", running)
        _cut(landing, files, _parsed(host, trailer, f"cannot read {source}"))
        for entry in wanted:
            if entry.link is not None:
                landing.link(entry)


def _cut(landing: Landing, files: Sequence[Entry], short: object) -> None:
    """Shorten the files that had shrunk on the node; anything else that it says is passed over."""
    for index, size in short.items() if isinstance(short, dict) else ():
        if index.isdigit() and int(index) < len(files) and isinstance(size, int):
            landing.cut(files[int(index)], size)


def _parsed(host: Carrier, message: bytes, problem: str) -> object:
    try:
        return json.loads(message[_HEADER_BYTES:])
    except ValueError as err:
        raise _senseless(host, problem) from err


def _senseless(host: Carrier, problem: str) -> RemoteCommandError:
    return RemoteCommandError(
        f"{describe(host.node)}: {problem}: its answer makes no sense",
        hint="look for what the login shell of the node prints or replaces: `cloudgpu ssh`",
    )


def _command(verb: str, where: str) -> Command:
    """The program itself goes through standard input, so that messages and process lists stay readable."""
    return Command("python3", "-I", "-c", _LOADER, str(len(_PROGRAM)), verb, where)


def _message(value: Sequence[object]) -> bytes:
    text = json.dumps(value).encode("ascii")
    return struct.pack(">Q", len(text)) + text


def _broken(host: Carrier, problem: str, running: Running) -> RemoteCommandError:
    tail = bytes(running.stderr).decode("utf-8", "replace").strip().splitlines()[-10:]
    return _failed(host, problem, running.exit_code, tail)


def _failed(host: Carrier, problem: str, exit_code: int, tail: Sequence[str]) -> RemoteCommandError:
    hint = "the node needs python3 (3.8 or newer) on its PATH" if exit_code == _NOT_FOUND else ""
    because = "; ".join(tail) or f"exit code {exit_code}"
    return RemoteCommandError(f"{describe(host.node)}: {problem}: {because}", tail=tail, hint=hint)
