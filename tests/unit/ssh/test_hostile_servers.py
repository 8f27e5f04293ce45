"""Servers that send nothing, noise or endless data cause a typed error in bounded time and memory."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh import connection, session, transport
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.keys import ensure_key
from cloudgpu.ssh.session import KeepaliveLimits, SessionStream

Speak = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Speak], int]]:
    """Listen on a local port and run `speak` on every connection."""
    listeners: list[socket.socket] = []

    def start(speak: Speak) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_spoken, args=(speak, accepted), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _spoken(speak: Speak, accepted: socket.socket) -> None:
    with accepted:
        try:
            speak(accepted)
        except OSError:
            return  # the caller hung up


def silence(accepted: socket.socket) -> None:
    accepted.recv(1 << 20)
    accepted.recv(1 << 20)


def endless(piece: bytes) -> Speak:
    def speak(accepted: socket.socket) -> None:
        while True:
            accepted.sendall(piece)

    return speak


def said(text: bytes) -> Speak:
    def speak(accepted: socket.socket) -> None:
        accepted.sendall(text)
        silence(accepted)

    return speak


HTTP = said(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    "speak",
    [
        silence,
        endless(b"x" * 4096),
        endless(b"Welcome to the lab!\r\n" * 200),
        endless(b"\0" * 4096),
        HTTP,
        said(b"SSH-1.5-old\r\n"),
        said(b"SSH-2.0-silent\r\n"),
        said(b"SSH-2.0-" + b"x" * 60_000 + b"\r\n"),
        said(b"SSH-2.0-liar\r\n" + b"\xff" * 4096),
        said(b"\x1b]0;owned\x07\r\n" * 200),
        lambda accepted: accepted.close(),
    ],
    ids=["silent", "no-newline", "motd", "zeros", "http", "ssh1", "no-kex", "long-id", "bad-kex", "escapes", "closed"],
)
def test_non_ssh_server_raises_connect_error_within_time_limit(serve, tmp_path: Path, speak: Speak) -> None:
    # Only to a server that waits for more does the limit matter; the others are refused for what they send.
    timeout_s = 0.3 if speak in (silence, HTTP) else 20.0
    key = tmp_path / "key"
    ensure_key(key)
    node = Node(0, "i-0", "127.0.0.1", serve(speak), "lea", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "z", "V100", 1,
                True)  # fmt: skip
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        connect(node, key, clock=SystemClock(), timeout_s=timeout_s)
    assert time.monotonic() - began < 30
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 600


def test_endless_greeting_is_rejected_early() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        packets = transport._CountingPackets(ours)
        sent = 0

        def flood(_timeout: float) -> bytes:
            nonlocal sent
            sent += 1000
            return b"x" * 1000

        packets._read_timeout = flood
        with pytest.raises(Exception, match="greeting is longer"):
            packets.readline(1)
        assert sent < 100_000
        packets._read_timeout = lambda _timeout: b"SSH-2.0-a\r\nrest"
        setattr(packets, transport._REMAINDER, b"")
        assert packets.readline(1) == "SSH-2.0-a"
        assert getattr(packets, transport._REMAINDER) == b"rest"


class Flood:
    """A command that prints endless output."""

    who, hint = "node 0", ""
    exit_code = 0
    stderr = b""
    closed = False

    def output(self, _timeout_s: float | None = None) -> Iterator[bytes]:
        while not self.closed:
            yield b"x" * 10_000

    def renew(self) -> None:
        return

    def close(self) -> None:
        self.closed = True

    end = close


def test_endless_line_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LONGEST_LINE", 100_000)
    flood = Flood()
    with pytest.raises(RemoteCommandError, match="node 0 sent a line longer than"):
        list(SessionStream(flood).lines())
    assert flood.closed


def test_endless_command_output_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_OUTPUT_BYTES", 1 << 20)
    node = Node(0, "i-0", "127.0.0.1", 1, "lea", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "z", "V100", 1, True)
    host = SshHost(node, Path("key"), clock=SystemClock(), timeout_s=1, via=None, keepalive=KeepaliveLimits())
    flood = Flood()
    with pytest.raises(RemoteCommandError, match="a command printed more than 1 MiB"):
        host._read(flood, None)
    assert flood.closed
