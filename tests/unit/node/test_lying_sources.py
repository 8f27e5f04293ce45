"""What nodes fetch from servers that lie: a typed error in time, and no file that looks whole."""

import hashlib
import ssl
import time
from pathlib import Path

import pytest

from cloudgpu.node.agent.containers import image_archive
from cloudgpu.node.agent.errors import AgentError
from cloudgpu.node.agent.fetch import download, http
from cloudgpu.node.agent.fetch.from_peer import Peer
from cloudgpu.node.agent.fetch.http_limits import MinimumSpeed, PacedStream
from cloudgpu.node.agent.fetch.part import STEP
from tests.lying.collecting import collect_sockets  # noqa: F401 - a fixture
from tests.lying.lies import Lie, cases, telling
from tests.lying.readers import outcome
from tests.lying.server import answer, lying

# An agent's connections stay open until its process ends; here it does not.
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

CONTENT = b"54321"
SIZES = {"small": len(CONTENT), "large": 2 * STEP}
TOKEN = "hush-hush"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Seconds where nodes have minutes; a lie lasts longer still."""
    monkeypatch.setattr(http, "_READ_TIMEOUT_S", 2.0)
    monkeypatch.setattr(http, "_PACE", MinimumSpeed(head_s=1.0, window_s=1.0))
    monkeypatch.setattr(download, "_BACK_OFF_S", 0.01)
    monkeypatch.setattr(image_archive, "_WAITS_S", (0.01, 0.01))


def fetched(url: str, path: Path, size: int, sha256: str | None):
    lines: list = []
    file = {"url": url, "path": str(path), "size": size, "sha256": sha256}
    download.verb({"files": [file], "roots": [str(path.parent)], "attempts": 2}, lines.append)
    return lines


def disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("vouched", [True, False], ids=["checksum", "no checksum"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("lie", cases())
def test_a_source_that_lies_leaves_no_file(lie: Lie, size: int, vouched: bool, tmp_path: Path):
    path = tmp_path / "data" / "f"
    sha256 = hashlib.sha256(CONTENT).hexdigest() if vouched else None
    with telling(lie) as server:
        found = outcome(lambda: fetched(f"{server.url}/f", path, size, sha256))
    assert isinstance(found, AgentError), found
    assert found.message.isprintable()
    assert found.code in ("network", "refused", "checksum", "changed"), found.code
    assert not path.exists()
    assert {one.name for one in tmp_path.rglob("*")} <= {"data", "f.part", "f.part.map"}
    assert disk_bytes(tmp_path) <= size + 2 * 2**20


@pytest.mark.parametrize("lie", cases())
def test_a_node_that_lies_hands_over_no_image(lie: Lie):
    with telling(lie) as server:
        hand = Peer(server.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        came = [0]

        def take() -> None:
            for piece in image_archive._pieces(hand, 1000):
                came[0] += len(piece)

        found = outcome(take)
    # As many bytes as were promised are taken for the archive: the engine's digest of it is what decides.
    assert came[0] <= 1000
    if came[0] < 1000:
        assert isinstance(found, AgentError), found
        assert found.message.isprintable()


@pytest.mark.parametrize("location", ["http://127.0.0.2:1/x", "http://example.invalid/", "/elsewhere"])
def test_the_token_of_a_hand_over_goes_nowhere_else(location: str):
    with lying(lambda _: [answer("302 Found", location=location)]) as node:
        hand = Peer(node.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        found = outcome(lambda: list(image_archive._pieces(hand, 10)))
        assert isinstance(found, AgentError)
        assert {one.path for one in node.asked} == {"/archive"}


def test_an_image_that_goes_on_from_its_beginning_is_not_taken():
    """The connection breaks, and the other node sends everything again where the rest was asked for."""
    archive = b"0123456789"

    def tell(request):
        first = "range" not in request.headers or request.headers["range"].startswith("bytes=0-")
        return [answer(body=archive[:5], content_length="10") if first else answer(body=archive)]

    with lying(tell) as node:
        hand = Peer(node.url, TOKEN, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        taken: list = []
        found = outcome(lambda: taken.extend(image_archive._pieces(hand, 10)))
    assert isinstance(found, AgentError), b"".join(taken)
    assert archive.startswith(b"".join(taken))


def test_a_file_that_another_one_needs_on_its_way_is_refused(tmp_path: Path):
    """`a` arrives as `a.part`: a file of that name would be taken for its beginning, and lost."""
    files = [
        {"url": "http://127.0.0.1:9/x", "path": str(tmp_path / name), "size": 1, "sha256": None}
        for name in ("a", "a.part")
    ]
    found = outcome(lambda: download.verb({"files": files}, print))
    assert isinstance(found, AgentError)
    assert "a.part" in found.message


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb"])
def test_a_name_that_no_file_can_have_is_refused_before_anything_is_asked(name: str, tmp_path: Path):
    file = {"url": "http://127.0.0.1:9/x", "path": f"{tmp_path}/{name}", "size": 1, "sha256": None}
    found = outcome(lambda: download.verb({"files": [file], "attempts": 1}, print))
    assert isinstance(found, AgentError), found
    assert found.code == ("outside" if "\0" in name else "network")


@pytest.mark.parametrize("size", [True, -1, 1.5, "5", None])
def test_a_size_that_is_none_is_refused(size, tmp_path: Path):
    found = outcome(lambda: fetched("http://127.0.0.1:9/x", tmp_path / "f", size, None))
    assert isinstance(found, AgentError)
    assert "is invalid" in found.message


class Line:
    """A socket that delivers `size` bytes after `seconds` of a clock of its own."""

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
def test_a_slow_source_is_given_up_and_a_slow_disk_is_not(line: Line, pause_s: float, error: str):
    """Only the time that is spent waiting for bytes counts."""
    stream, buffer = PacedStream(line, MinimumSpeed(clock=lambda: line.now)), bytearray(65536)
    found = ""
    try:
        for _ in range(1000):
            stream.readinto(buffer)
            line.now += pause_s
    except OSError as err:
        found = str(err.strerror)
    assert found == error


def test_headers_that_come_in_time_are_read(tmp_path: Path):
    """The limits are no obstacle to a server that is only slow to begin."""

    def tell(_request):
        time.sleep(0.3)
        yield answer(body=CONTENT)

    with lying(tell) as server:
        lines = fetched(f"{server.url}/f", tmp_path / "f", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert lines[-1]["fetched"] == 1
    assert (tmp_path / "f").read_bytes() == CONTENT
