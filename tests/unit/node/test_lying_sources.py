"""Downloads from misbehaving servers fail in time with a typed error and leave no complete-looking file."""

import hashlib
import ssl
import time
from pathlib import Path

import pytest

from cloudgpu.node.agent.containers import image_transfer
from cloudgpu.node.agent.fetch import download, http
from cloudgpu.node.agent.fetch.bounded_http import MinimumSpeed, PacedStream
from cloudgpu.node.agent.fetch.http import Peer
from cloudgpu.node.agent.fetch.partial_files import STEP
from cloudgpu.node.agent.untrusted_data import AgentError
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import BadResponse, bad_server, cases
from tests.bad_http.server import http_response, raw_server
from tests.bad_http.sockets import collect_sockets  # noqa: F401 - a fixture

# The agent leaves connections open until its process exits, which it does not do here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

CONTENT = b"54321"
SIZES = {"small": len(CONTENT), "large": 2 * STEP}
TOKEN = "hush-hush"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Shorten the timeouts from minutes to seconds; the misbehaving server is slower still."""
    monkeypatch.setattr(http, "_READ_TIMEOUT_S", 2.0)
    monkeypatch.setattr(http, "_PACE", MinimumSpeed(head_s=1.0, window_s=1.0))
    monkeypatch.setattr(download, "_BACK_OFF_S", 0.01)
    monkeypatch.setattr(image_transfer, "_ARCHIVE_WAITS_S", (0.01, 0.01))


def fetched(url: str, path: Path, size: int, sha256: str | None):
    lines: list = []
    file = {"url": url, "path": str(path), "size": size, "sha256": sha256}
    download.fetch_files({"files": [file], "roots": [str(path.parent)], "attempts": 2}, lines.append)
    return lines


def disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("code", "shown", "hint"),
    [
        ("InvalidObjectState", " (InvalidObjectState)", "aws s3api restore-object"),
        ("AccessDenied", " (AccessDenied)", "check that your credentials can read this object"),
        ("\x1b[31mAccessDenied", "", "check that your credentials can read this object"),
        ("x" * 80, "", "check that your credentials can read this object"),
    ],
)
def test_reason_of_s3_is_shown_if_it_is_a_code(code: str, shown: str, hint: str, tmp_path: Path):
    body = f"<Error><Code>{code}</Code><StorageClass>GLACIER</StorageClass></Error>".encode()
    with raw_server(lambda _: [http_response("403 Forbidden", body=body)]) as server:
        found = call_within_limits(lambda: fetched(f"{server.url}/f", tmp_path / "f", 5, None))
    assert isinstance(found, AgentError)
    assert found.message.endswith(f"the server returned 403 Forbidden{shown}")
    assert hint in found.hint


@pytest.mark.parametrize("vouched", [True, False], ids=["checksum", "no checksum"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("bad_response", cases())
def test_download_from_a_misbehaving_server_leaves_no_file(
    bad_response: BadResponse, size: int, vouched: bool, tmp_path: Path
):
    path = tmp_path / "data" / "f"
    sha256 = hashlib.sha256(CONTENT).hexdigest() if vouched else None
    with bad_server(bad_response) as server:
        found = call_within_limits(lambda: fetched(f"{server.url}/f", path, size, sha256))
    assert isinstance(found, AgentError), found
    assert found.message.isprintable()
    assert found.code in ("network", "refused", "checksum", "changed"), found.code
    assert not path.exists()
    assert {one.name for one in tmp_path.rglob("*")} <= {"data", "f.part", "f.part.map"}
    assert disk_bytes(tmp_path) <= size + 2 * 2**20


@pytest.mark.parametrize("bad_response", cases())
def test_misbehaving_peer_transfers_no_complete_image(bad_response: BadResponse):
    with bad_server(bad_response) as server:
        hand = Peer(server.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        came = [0]

        def take() -> None:
            for piece in image_transfer._pieces(hand, 1000):
                came[0] += len(piece)

        found = call_within_limits(take)
    # The promised number of bytes is accepted as the archive: the container engine verifies its digest.
    assert came[0] <= 1000
    if came[0] < 1000:
        assert isinstance(found, AgentError), found
        assert found.message.isprintable()


@pytest.mark.parametrize("location", ["http://127.0.0.2:1/x", "http://example.invalid/", "/elsewhere"])
def test_peer_transfer_token_follows_no_redirect(location: str):
    with raw_server(lambda _: [http_response("302 Found", location=location)]) as node:
        hand = Peer(node.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        found = call_within_limits(lambda: list(image_transfer._pieces(hand, 10)))
        assert isinstance(found, AgentError)
        assert {one.path for one in node.requests} == {"/archive"}


def test_resumed_image_transfer_that_restarts_is_rejected():
    """The connection breaks, and the peer sends the whole archive instead of the requested rest."""
    archive = b"0123456789"

    def respond(request):
        first = "range" not in request.headers or request.headers["range"].startswith("bytes=0-")
        return [http_response(body=archive[:5], content_length="10") if first else http_response(body=archive)]

    with raw_server(respond) as node:
        hand = Peer(node.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        taken: list = []
        found = call_within_limits(lambda: taken.extend(image_transfer._pieces(hand, 10)))
    assert isinstance(found, AgentError), b"".join(taken)
    assert archive.startswith(b"".join(taken))


def test_target_that_collides_with_a_partial_file_is_rejected(tmp_path: Path):
    """`a` is downloaded as `a.part`: an existing target of that name would be mistaken for a partial download."""
    files = [
        {"url": "http://127.0.0.1:9/x", "path": str(tmp_path / name), "size": 1, "sha256": None}
        for name in ("a", "a.part")
    ]
    found = call_within_limits(lambda: download.fetch_files({"files": files}, print))
    assert isinstance(found, AgentError)
    assert "a.part" in found.message


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb"])
def test_invalid_file_name_is_rejected(name: str, tmp_path: Path):
    file = {"url": "http://127.0.0.1:9/x", "path": f"{tmp_path}/{name}", "size": 1, "sha256": None}
    found = call_within_limits(lambda: download.fetch_files({"files": [file], "attempts": 1}, print))
    assert isinstance(found, AgentError), found
    assert found.code == ("outside" if "\0" in name else "network")


@pytest.mark.parametrize("size", [True, -1, 1.5, "5", None])
def test_invalid_file_size_is_rejected(size, tmp_path: Path):
    found = call_within_limits(lambda: fetched("http://127.0.0.1:9/x", tmp_path / "f", size, None))
    assert isinstance(found, AgentError)
    assert "is invalid" in found.message


class Line:
    """A socket with its own clock that delivers `size` bytes after `seconds`."""

    def __init__(self, seconds: float, size: int) -> None:
        self.now, self.seconds, self.size = 0.0, seconds, size

    def makefile(self, *_given, **_named):
        return self

    def gettimeout(self) -> float:
        return 60.0

    def settimeout(self, _seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    def readinto(self, buffer) -> int:
        self.now += self.seconds
        return min(self.size, len(buffer))


@pytest.mark.parametrize(
    ("line", "pause_s", "error"),
    [
        (Line(0.01, 65536), 600.0, ""),
        (Line(1.0, 2000), 0.0, ""),
        (Line(10.0, 1), 0.0, "too slow: 6 bytes in 60 s"),
    ],
    ids=["slow disk", "slow line", "trickle"],
)
def test_slow_source_is_aborted_but_slow_disk_is_not(line: Line, pause_s: float, error: str):
    """Only the time spent waiting for bytes counts."""
    stream, buffer = PacedStream(line, MinimumSpeed(clock=lambda: line.now)), bytearray(65536)
    found = ""
    try:
        for _ in range(1000):
            stream.readinto(buffer)
            line.now += pause_s
    except OSError as err:
        found = str(err.strerror)
    assert found == error


def test_delayed_response_headers_are_accepted_within_the_timeout(tmp_path: Path):
    """The limits accept a server that is slow only to start."""

    def respond(_request):
        time.sleep(0.3)
        yield http_response(body=CONTENT)

    with raw_server(respond) as server:
        lines = fetched(f"{server.url}/f", tmp_path / "f", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert lines[-1]["fetched"] == 1
    assert (tmp_path / "f").read_bytes() == CONTENT
