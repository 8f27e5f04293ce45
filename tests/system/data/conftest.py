"""The agent file, an object server with S3 semantics, and a proxy that can cut connections to it."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudgpu.node.payload import agent_name, agent_source


class AgentRunner:
    """Runs the verbs of an agent file in its own folder. A call waits for the verb and returns its last JSON line."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / agent_name()
        self.path.write_bytes(agent_source())

    def start(self, verb: str, spec: dict, **environment: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, str(self.path), verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        process.stdin.write(json.dumps(spec).encode())
        process.stdin.close()
        process.stdin = None
        return process

    def __call__(self, verb: str, spec: dict, *, ok: bool = True, **environment: str) -> dict:
        process = self.start(verb, spec, **environment)
        out, err = process.communicate(timeout=60)
        assert (process.returncode == 0) is ok, (out, err)
        return json.loads(out.splitlines()[-1])


@pytest.fixture
def run_agent(tmp_path: Path) -> AgentRunner:
    return AgentRunner(tmp_path / "agent")


class Objects(ThreadingHTTPServer):
    """A server of files with ETags that supports ranges and If-Match as S3 does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requested_ranges: list[str] = []
        self.on_range = lambda _first: None
        self.refuse_with: list[tuple[int, bytes]] = []

    def etag(self, name: str) -> str:
        return hashlib.md5(self.files[name]).hexdigest()

    def file_spec(self, path: Path, port: int = 0, **more: object) -> dict:
        """Return the specification of a file for the agent's verb `fetch`."""
        name = path.name
        content = self.files[name]
        url = f"http://127.0.0.1:{port or self.server_port}/{name}"
        file = {"url": url, "path": str(path), "size": len(content), "etag": self.etag(name)}
        return {**file, "sha256": hashlib.sha256(content).hexdigest(), **more}


class _Handler(BaseHTTPRequestHandler):
    server: Objects
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        requested = self.headers.get("Range") or ""
        self.server.requested_ranges.append(requested)
        if self.server.refuse_with:
            return self._respond(*self.server.refuse_with.pop(0))
        name = self.path.lstrip("/")
        first, _, last = requested.removeprefix("bytes=").partition("-")
        self.server.on_range(int(first or 0))
        content, etag = self.server.files[name], self.server.etag(name)
        if self.headers.get("If-Match") not in (None, f'"{etag}"'):
            return self._respond(412, b"<Code>PreconditionFailed</Code>")
        part = content[int(first or 0) : int(last) + 1 if last else None]
        headers = {"ETag": f'"{etag}"'}
        if requested:
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return self._respond(206 if requested else 200, part, **headers)

    def _respond(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)


@contextlib.contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[None]:
    """Run a server in a thread until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def objects() -> Iterator[Objects]:
    server = Objects()
    with served(server):
        yield server


class CuttingProxy:
    """A TCP proxy that cuts all connections after a total number of bytes from the server.

    Attributes:
        cut: Set once a connection has been cut.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._remaining: int | None = None
        self._lock = threading.Lock()
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, size: int) -> None:
        self._remaining = size

    def stop_cutting(self) -> None:
        self._remaining = None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port))
                except OSError:
                    client.close()
                else:
                    for source, target, counted in ((client, server, False), (server, client, True)):
                        threading.Thread(target=self._forward, args=(source, target, counted), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted and not self._may_forward(len(data)):
                    break
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _may_forward(self, size: int) -> bool:
        """Count bytes from the server. Return False if they exceed the limit."""
        with self._lock:
            if self._remaining is None:
                return True
            self._remaining -= size
            if self._remaining < 0:
                self.cut.set()
            return self._remaining >= 0


@pytest.fixture
def proxy(objects: Objects) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(objects.server_port)
    yield proxy
    proxy.close()
