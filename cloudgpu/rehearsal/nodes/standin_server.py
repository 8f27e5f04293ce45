"""The host's end of a node's stand-ins: a socket in the node, one question a connection."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from cloudgpu.rehearsal.nodes import sockets
from cloudgpu.rehearsal.nodes.standins import Reply

_LIMIT_BYTES = 512 * 1024
Asked = Callable[[str, Sequence[str], dict[str, str]], Awaitable[Reply]]


class StandInServer:
    """Listens for one node."""

    def __init__(self, asked: Asked, answered: Callable[[Reply], None]) -> None:
        """Nothing listens yet.

        Args:
            asked: Finds the answer.
            answered: Called when the answer is on its way: now a node may end.
        """
        self._asked = asked
        self._answered = answered
        self._server: asyncio.Server | None = None

    async def listen(self, folder: Path) -> None:
        """Serve on `node.sock` in a folder that the node sees.

        Raises:
            OSError: The folder cannot be written.
        """
        bound = sockets.bind(folder / "node.sock")
        self._server = await asyncio.start_unix_server(self._serve, sock=bound, limit=_LIMIT_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Whatever a node sends, or however it goes away, is its own affair.
        with contextlib.suppress(OSError, ValueError, asyncio.LimitOverrunError):
            question = _question(await reader.readline())
            if question is not None:
                reply = await self._asked(*question)
                values = {"stdout": reply.stdout, "stderr": reply.stderr, "exit_code": reply.exit_code}
                writer.write(json.dumps(values).encode() + b"\n")
                with contextlib.suppress(OSError):
                    await writer.drain()
                self._answered(reply)
        writer.close()


def _question(line: bytes) -> tuple[str, list[str], dict[str, str]] | None:
    """Program, arguments and unit files, or None for rubbish.

    Raises:
        ValueError: It is not JSON.
    """
    values: Any = json.loads(line)
    if not isinstance(values, dict):
        return None
    program, arguments, units = values.get("program"), values.get("arguments"), values.get("units", {})
    if not isinstance(program, str) or not isinstance(arguments, list) or not isinstance(units, dict):
        return None
    return program, [str(item) for item in arguments], {str(name): str(text) for name, text in units.items()}
