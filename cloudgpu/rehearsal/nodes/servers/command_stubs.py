"""The host's side of a node's simulated commands: a socket inside the node that accepts one request per connection.

`programs/standin.py` describes the format of requests and responses.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cloudgpu.rehearsal.nodes import addresses
from cloudgpu.rehearsal.nodes.servers.command_answers import Reply

_LIMIT_BYTES = 512 * 1024
Asked = Callable[[str, Sequence[str], dict[str, str]], Awaitable[Reply]]


class StandInServer:
    """The server that replies to the simulated commands of one node."""

    def __init__(self, asked: Asked, answered: Callable[[Reply], None]) -> None:
        """Create the server without listening.

        Args:
            asked: Function that returns the reply to a command.
            answered: Function that is called after the reply was sent. It may power off the node.
        """
        self._asked = asked
        self._answered = answered
        self._server: asyncio.Server | None = None

    async def listen(self, folder: Path) -> None:
        """Serve on `node.sock` in a directory that is visible in the node."""
        bound = addresses.bind(folder / "node.sock")
        self._server = await asyncio.start_unix_server(self._serve, sock=bound)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # An invalid request or a dropped connection must not affect other nodes.
        with contextlib.suppress(OSError, ValueError, IndexError):
            reply = await self._asked(*_parsed(await _read_all(reader)))
            writer.write(_response(reply))
            with contextlib.suppress(OSError):
                await writer.drain()
            self._answered(reply)
        writer.close()


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    """Read everything up to the end of the stream."""
    text = b""
    while part := await reader.read(_LIMIT_BYTES):
        text += part
        if len(text) > _LIMIT_BYTES:
            raise ValueError
    return text


def _parsed(text: bytes) -> tuple[str, list[str], dict[str, str]]:
    """Split a request into the program, its arguments and the unit files."""
    fields = [field.decode(errors="replace") for field in text.split(b"\0")]
    program, end = fields[0], 2 + int(fields[1])
    arguments, units = fields[2:end], fields[end:]
    return program, arguments, dict(zip(units[::2], units[1::2], strict=True))


def _response(reply: Reply) -> bytes:
    stdout, stderr = reply.stdout.encode(), reply.stderr.encode()
    return f"{reply.exit_code} {len(stdout)} {len(stderr)}\n".encode() + stdout + stderr
