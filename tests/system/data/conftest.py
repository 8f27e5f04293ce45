"""The agent as nodes run it, a file server with S3 semantics, and a connection to it that can be cut."""

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


class Asked:
    """An agent file in a folder of its own, and its verbs."""

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
def ask(tmp_path: Path) -> Asked:
    return Asked(tmp_path / "agent")


class Objects(ThreadingHTTPServer):
    """Files with ETags; ranges and If-Match as S3 has them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.on_range = lambda _first: None
        self.refuse_with: list[tuple[int, bytes]] = []

    def etag(self, name: str) -> str:
        return hashlib.md5(self.files[name]).hexdigest()

    def wanted(self, path: Path, port: int = 0, **more: object) -> dict:
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
        asked = self.headers.get("Range") or ""
        self.server.asked.append(asked)
        if self.server.refuse_with:
            return self._answer(*self.server.refuse_with.pop(0))
        name = self.path.lstrip("/")
        first, _, last = asked.removeprefix("bytes=").partition("-")
        self.server.on_range(int(first or 0))
        content, etag = self.server.files[name], self.server.etag(name)
        if self.headers.get("If-Match") not in (None, f'"{etag}"'):
            return self._answer(412, b"<Code>PreconditionFailed</Code>")
        part = content[int(first or 0) : int(last) + 1 if last else None]
        headers = {"ETag": f'"{etag}"'}
        if asked:
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return self._answer(206 if asked else 200, part, **headers)

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body)


@contextlib.contextmanager
def served(server: ThreadingHTTPServer) -> Iterator[None]:
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


class Line:
    """A TCP proxy that cuts every connection after so many bytes from the server; mended, it carries all."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._left: int | None = None
        self._lock = threading.Lock()
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, size: int) -> None:
        self._left = size

    def mend(self) -> None:
        self._left = None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                else:
                    for source, target, counted in ((client, server, False), (server, client, True)):
                        threading.Thread(target=self._carry, args=(source, target, counted), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted and not self._passes(len(data)):
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _passes(self, size: int) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= size
            if self._left < 0:
                self.cut.set()
            return self._left >= 0


@pytest.fixture
def line(objects: Objects) -> Iterator[Line]:
    one = Line(objects.server_port)
    yield one
    one.close()
