"""Agent downloads from a real HTTP server that fails on demand."""

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloudgpu.node.payload import agent_name, agent_source

pytestmark = [pytest.mark.main_path, pytest.mark.system]

SIGNATURE = "X-Amz-Signature=do-not-show"
CONTENT = bytes(range(256)) * 20000  # 5 MB


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[object] = []
        self.ranges: list[str | None] = []
        self.honours_ranges = True

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}?{SIGNATURE}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        fault = self.server.faults.pop(0) if self.server.faults else None
        content = self.server.files.get(self.path.partition("?")[0].lstrip("/"))
        if isinstance(fault, int) or content is None:
            self.send_error(fault if isinstance(fault, int) else 404)
            return
        first = int(wanted[6:-1]) if wanted and self.server.honours_ranges else 0
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        body = content[first:]
        with contextlib.suppress(ConnectionError):
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)


@pytest.fixture
def server():
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.fixture
def fetch(tmp_path: Path):
    agent = tmp_path / agent_name()
    agent.write_bytes(agent_source())

    def call(*files: dict, ok: bool = True, **more: object) -> dict:
        spec = json.dumps({"files": list(files), **more}).encode()
        done = subprocess.run(
            [sys.executable, str(agent), "fetch"], input=spec, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode == 0) is ok, (done.stdout, done.stderr)
        assert b"do-not-show" not in done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return call


def wanted(server: Server, path: Path, content: bytes = CONTENT, **more: object) -> dict:
    server.files[path.name] = content
    sha256 = hashlib.sha256(content).hexdigest()
    return {"url": server.url(path.name), "path": str(path), "size": len(content), "sha256": sha256, **more}


def test_fetch_reuses_files_already_present(server, fetch, tmp_path: Path) -> None:
    files = [wanted(server, tmp_path / "data" / f"f{i}", CONTENT[: i * 1000]) for i in range(20)]
    assert fetch(*files) == {"fetched": 20, "bytes": sum(file["size"] for file in files), "reused": 0}
    assert (tmp_path / "data" / "f7").read_bytes() == CONTENT[:7000]
    assert fetch(*files) == {"fetched": 0, "bytes": 0, "reused": 20}
    assert not list(tmp_path.rglob("*.part"))


def test_file_with_right_size_but_wrong_content_is_refetched(server, fetch, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * len(CONTENT))
    assert fetch(wanted(server, path))["fetched"] == 1
    assert path.read_bytes() == CONTENT


def test_download_resumes_from_partial_file(server, fetch, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.with_name("f.part").write_bytes(CONTENT[:1_000_000])
    assert fetch(wanted(server, path))["bytes"] == len(CONTENT) - 1_000_000
    assert server.ranges == ["bytes=1000000-"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("rubbish", [b"?" * 1000, b"?" * (len(CONTENT) + 5), b"?" * len(CONTENT)])
def test_corrupt_partial_file_is_replaced(server, fetch, tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "f"
    path.with_name("f.part").write_bytes(rubbish)
    fetch(wanted(server, path))
    assert path.read_bytes() == CONTENT


def test_download_restarts_when_server_ignores_range_requests(server, fetch, tmp_path: Path) -> None:
    server.honours_ranges = False
    path = tmp_path / "f"
    path.with_name("f.part").write_bytes(CONTENT[:1000])
    fetch(wanted(server, path))
    assert path.read_bytes() == CONTENT


def test_transient_server_errors_are_retried(server, fetch, tmp_path: Path) -> None:
    server.faults = [503, "cut", 500]
    path = tmp_path / "f"
    assert fetch(wanted(server, path))["fetched"] == 1
    assert path.read_bytes() == CONTENT
    assert server.ranges[-1] is not None


def test_checksum_mismatch_is_reported_and_leaves_no_file(server, fetch, tmp_path: Path) -> None:
    path = tmp_path / "f"
    answer = fetch(wanted(server, path, sha256="0" * 64), ok=False)
    assert (answer["code"], str(path) in answer["error"]) == ("checksum", True)
    assert not path.exists()


def test_size_mismatch_is_reported(server, fetch, tmp_path: Path) -> None:
    answer = fetch(wanted(server, tmp_path / "f", size=7), ok=False)
    assert "than the expected" in answer["error"]


@pytest.mark.parametrize("code", [403, 404])
def test_http_403_and_404_are_not_retried(server, fetch, tmp_path: Path, code: int) -> None:
    server.faults = [code]
    answer = fetch(wanted(server, tmp_path / "f"), ok=False)
    assert str(code) in answer["error"]
    assert len(server.ranges) == 1


def test_refused_connection_is_reported_as_network_error(fetch, tmp_path: Path, monkeypatch) -> None:
    file = {"url": f"http://127.0.0.1:9/x?{SIGNATURE}", "path": str(tmp_path / "f"), "size": 1, "sha256": None}
    monkeypatch.setenv("no_proxy", "*")
    answer = fetch(file, ok=False, attempts=2)
    assert answer["code"] == "network"
    assert "refused" in answer["error"]


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a//b", "/a/"])
def test_relative_or_unnormalized_path_is_rejected(fetch, path: str) -> None:
    answer = fetch({"url": "http://127.0.0.1/x", "path": path, "size": 1}, ok=False)
    assert answer["code"] == "outside"


def test_fetch_through_symlink_outside_roots_is_rejected(server, fetch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path)
    inside = wanted(server, tmp_path / "data" / "f", b"x")
    fetch(inside, roots=[str(tmp_path / "data")])
    answer = fetch({**inside, "path": str(tmp_path / "data" / "link" / "f")}, ok=False, roots=[str(tmp_path / "data")])
    assert answer["code"] == "outside"


def test_non_http_url_is_rejected(fetch, tmp_path: Path) -> None:
    assert "http" in fetch({"url": "file:///etc/passwd", "path": str(tmp_path / "f"), "size": 1}, ok=False)["error"]


def test_concurrent_fetches_download_file_once(server, tmp_path: Path) -> None:
    agent = tmp_path / agent_name()
    agent.write_bytes(agent_source())
    spec = json.dumps({"files": [wanted(server, tmp_path / "f")]}).encode()
    both = [
        subprocess.Popen([sys.executable, str(agent), "fetch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write(spec)
        process.stdin.close()
        process.stdin = None
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert sorted(answer["fetched"] for answer in answers) == [0, 1]
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_full_disk_is_reported(server, fetch, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        # Without the right to mount, a directory that refuses the file is the nearest thing.
        small.chmod(0o500)
        assert fetch(wanted(server, small / "f"), ok=False)["code"] == "io"
        return
    try:
        answer = fetch(wanted(server, small / "f"), ok=False)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert answer["code"] == "disk-full"
