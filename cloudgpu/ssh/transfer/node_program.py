"""Run the program for transfers on a node, and exchange messages with it."""

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import COMMAND_S, OnBytes, Result, node_label
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.transfer import node_read, node_tree
from cloudgpu.ssh.transfer.node_tree import MARK
from cloudgpu.ssh.transfer.receive import ReceiveStream
from cloudgpu.text import printable

_NOT_FOUND = 127
NOISE_BYTES: Final = 16 << 20
"""Maximum number of bytes that a login shell may print before the response. If it prints more, the transfer fails."""
_ANSWER_BYTES: Final = 256 << 20
"""Maximum size of a response in bytes: enough for about a million files, but a hostile node cannot exhaust memory."""
_STALLED_S: Final = 300.0
"""Seconds in which a transfer must move at least `LEAST_BYTES_PER_S` bytes per second."""
REASON_LENGTH: Final = 500
_SENT_FROM: Final = b"# -- sent from here on --\n"
_GUARD: Final = b'if __name__ == "__main__":'
_LOADER = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'node_tree', 'exec'))"


def _program() -> bytes:
    """Join the halves of the node's program. The entry point, at the end of the first half, must come last."""
    first, guard, start = Path(node_tree.__file__).read_bytes().partition(_GUARD)
    second = Path(node_read.__file__).read_bytes().partition(_SENT_FROM)[2]
    return b"\n".join((first, second, guard + start))


_PROGRAM = _program()


class StartedCommand(Protocol):
    """A running command whose output is read in chunks of bytes."""

    stderr: bytearray

    @property
    def exit_code(self) -> int:
        """Exit code, valid once all output has been read."""

    def output(self, timeout_s: float | None = None, whole_s: float | None = None) -> Iterator[bytes]:
        """Yield standard output in chunks."""

    def count(self, size: int) -> None:
        """Count transferred bytes, which restart the time limit of `output` when they are enough."""

    def close(self) -> None:
        """Stop reading."""


class TransferConnection(Protocol):
    """The part of a connection's interface that a transfer uses."""

    node: Node

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and wait for it."""

    def start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes] = b"") -> StartedCommand:
        """Start a command."""


def paced_output(running: StartedCommand, whole_s: float | None = None) -> Iterator[bytes]:
    """Yield the output of a transfer. The transfer fails if it is too slow, or takes longer than `whole_s` seconds."""
    for piece in running.output(_STALLED_S, whole_s):
        yield piece
        running.count(len(piece))


def counted(pieces: Iterable[bytes], total: int, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield the pieces, and report their size. They include a few kilobytes in addition to the contents."""
    done = 0
    for piece in pieces:
        yield piece
        done = min(done + len(piece), total)
        on_bytes(done, total)


def ask_node(host: TransferConnection, command: RemoteCommand, question: bytes, problem: str) -> object:
    """Run a verb that returns one message, and return the message."""
    running = host.start(command, node_request(question))
    arriving = ReceiveStream(paced_output(running))
    return read_answer(host, arriving, running, problem)


def read_answer(
    host: TransferConnection, arriving: ReceiveStream, running: StartedCommand, problem: str, *, marked: bool = False
) -> object:
    """Read the final message of a response and nothing after it, because a hostile node may never stop sending."""
    has_mark = marked or arriving.skip_past(MARK, within=NOISE_BYTES)
    text = arriving.message(_ANSWER_BYTES) if has_mark else None
    if not arriving.ended():
        running.close()
        raise malformed_response(host, problem)
    if running.exit_code != 0:
        raise broken(host, problem, running)
    try:
        return json.loads(text or b"")
    except (ValueError, RecursionError) as err:
        raise malformed_response(host, problem) from err


def malformed_response(host: TransferConnection, problem: str) -> RemoteCommandError:
    """Return the error for a response that does not have the expected form."""
    return RemoteCommandError(
        f"{node_label(host.node)}: {problem}: the node's response is malformed",
        hint="check what the node's login shell runs and prints: `cloudgpu ssh`",
    )


def node_request(content: bytes) -> bytes:
    """Return the standard input of a verb: the program, and the messages for it."""
    return _PROGRAM + content


def verb_command(verb: str, where: str) -> RemoteCommand:
    """Return the command for a verb. The program is sent on stdin, to keep messages and process lists readable."""
    return RemoteCommand("python3", "-I", "-c", _LOADER, str(len(_PROGRAM)), verb, where)


def encode_message(value: Sequence[object]) -> bytes:
    """Return one message: its length in eight bytes, then JSON."""
    text = json.dumps(value).encode("ascii")
    return struct.pack(">Q", len(text)) + text


def broken(host: TransferConnection, problem: str, running: StartedCommand) -> RemoteCommandError:
    """Return the error for a finished command, with the end of its standard error."""
    tail = bytes(running.stderr).decode("utf-8", "replace").strip().splitlines()[-10:]
    return failed(host, problem, running.exit_code, tail)


def failed(host: TransferConnection, problem: str, exit_code: int, tail: Sequence[str]) -> RemoteCommandError:
    """Return the error for a failed command, whose last lines state the cause."""
    hint = "install python3 (3.8 or newer) on the node's PATH" if exit_code == _NOT_FOUND else ""
    tail = [printable(line)[:REASON_LENGTH] for line in tail]
    because = "; ".join(tail) or f"exit code {exit_code}"
    return RemoteCommandError(f"{node_label(host.node)}: {problem}: {because}", tail=tail, hint=hint)
