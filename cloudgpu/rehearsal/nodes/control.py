"""The control API of the node host: one JSON line per request on its Unix socket."""

import asyncio
import base64
import contextlib
import json
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import CloudGpuError
from cloudgpu.files import parse_json
from cloudgpu.rehearsal.faults.node_faults import node_fault_from
from cloudgpu.rehearsal.nodes.hosted_nodes import HostedNodes
from cloudgpu.rehearsal.nodes.values import Opened, RoleCredentials, spec_from_json, string_pairs

_LOG = logging.getLogger(__name__)
_LIMIT_BYTES = 64 * 1024 * 1024


class ControlServer:
    """A server for the control API that accepts requests only from processes of the same user or root."""

    def __init__(self, nodes: HostedNodes, save: Callable[[], None]) -> None:
        """Create the server without listening.

        Args:
            nodes: The nodes of this host.
            save: Function that saves the clock offset and the credentials for the next host process.
        """
        self._nodes = nodes
        self._save = save
        self._listeners: dict[asyncio.StreamWriter, asyncio.Event] = {}
        self.over = asyncio.Event()
        """Set when a client or a signal requests that the host shut down."""
        self.last_asked_s = time.monotonic()
        nodes.changed = self._tell
        self._operations: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "start": self._start,
            "stop": lambda request: nodes.stop(request["instance_id"]),
            "power_off": lambda request: nodes.power_off(request["instance_id"]),
            "reboot": lambda request: nodes.reboot(request["instance_id"]),
            "forget": lambda request: nodes.forget(request["instance_id"]),
            "list": self._list,
            "console": self._console,
            "advance": self._advance,
            "credentials": self._credentials,
            "faults": self._faults,
            "reach": self._reach,
            "keep_image": self._keep_image,
        }
        self._closing: list[asyncio.StreamWriter] = []

    async def listen(self, bound: socket.socket) -> asyncio.Server:
        """Serve on a bound Unix socket."""
        return await asyncio.start_unix_server(self._serve, sock=bound, limit=_LIMIT_BYTES)

    @property
    def has_event_listener(self) -> bool:
        """True while a client is waiting for events."""
        return bool(self._listeners)

    def release(self) -> None:
        """Close the connections of clients that are waiting for the shutdown or for events."""
        for writer in (*self._closing, *self._listeners):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.last_asked_s = time.monotonic()
        with contextlib.suppress(ConnectionError, asyncio.LimitOverrunError):
            if not _same_user(writer):
                writer.close()
                return
            request = _request(await reader.readline())
            if request.get("op") == "shutdown":
                self._closing.append(writer)
                self.over.set()
                return
            if request.get("op") == "events":
                await self._events(reader, writer)
            else:
                writer.write(json.dumps(await self._answer(request)).encode() + b"\n")
                await writer.drain()
        self.last_asked_s = time.monotonic()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        operation = self._operations.get(str(request.get("op")))
        if operation is None:
            return {"error": f"the node host does not support the operation {request.get('op')!r}"}
        try:
            return {"result": await operation(request)}
        except CloudGpuError as err:
            return {"error": err.message, "hint": err.hint}
        except MALFORMED as err:
            _LOG.warning("bad request", exc_info=err)
            return {"error": f"the node host rejected the request: {type(err).__name__}: {err}"}
        except OSError as err:
            _LOG.warning("failed request", exc_info=err)
            return {"error": f"the node host cannot carry out the request: {err}"}

    async def _start(self, request: dict[str, Any]) -> dict[str, object]:
        return asdict(await self._nodes.start(spec_from_json(request["spec"])))

    async def _list(self, _: dict[str, Any]) -> list[dict[str, object]]:
        return [asdict(report) for report in self._nodes.reports()]

    async def _console(self, request: dict[str, Any]) -> str:
        return base64.b64encode(self._nodes.find(request["instance_id"]).console.read()).decode()

    async def _advance(self, request: dict[str, Any]) -> None:
        self._nodes.advance(float(request["seconds"]))
        self._save()

    async def _credentials(self, request: dict[str, Any]) -> None:
        self._nodes.credentials = decode_as(RoleCredentials, request)
        self._save()

    async def _reach(self, request: dict[str, Any]) -> None:
        opened = Opened(bool(request["ssh"]), bool(request["egress"]), string_pairs(request.get("mountable", ())))
        await self._nodes.set_access(request["instance_id"], opened)

    async def _keep_image(self, request: dict[str, Any]) -> None:
        self._nodes.record_image_packages(request["instance_id"], str(request["image_id"]))

    async def _faults(self, request: dict[str, Any]) -> None:
        await self._nodes.put_faults([node_fault_from(row) for row in request["faults"]])

    async def _events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send unacknowledged events one at a time. The next listener receives any event that is not acknowledged."""
        changed = self._listeners[writer] = asyncio.Event()
        answer = asyncio.ensure_future(reader.readline())
        try:
            while True:
                changed.clear()
                waiting = self._nodes.unheard()
                if waiting:
                    writer.write(json.dumps(asdict(waiting[0])).encode() + b"\n")
                else:
                    waiting_for_change = asyncio.ensure_future(changed.wait())
                    await asyncio.wait({waiting_for_change, answer}, return_when=asyncio.FIRST_COMPLETED)
                    waiting_for_change.cancel()
                    if not answer.done():
                        continue
                line = await answer
                if not line:
                    return
                self._nodes.acknowledge(str(_request(line).get("heard")))
                answer = asyncio.ensure_future(reader.readline())
        finally:
            answer.cancel()
            del self._listeners[writer]

    def _tell(self) -> None:
        for news in self._listeners.values():
            news.set()


def _request(line: bytes) -> dict[str, Any]:
    try:
        return decode_as(dict[str, Any], parse_json(line))
    except ValueError:
        return {}


def _same_user(writer: asyncio.StreamWriter) -> bool:
    """Return True if the peer is this user or root, or if the system is not Linux.

    Some file systems ignore a socket's file mode, so the mode alone does not keep other users out.
    """
    peer = writer.get_extra_info("socket")
    if sys.platform != "linux" or peer is None:
        return True
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user in (0, os.geteuid()))
