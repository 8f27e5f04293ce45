"""Chunked uploads, control signatures, request filtering and HTTP framing."""

import socket
import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.server import control
from cloudgpu.rehearsal.server.control import sign_call, signature_is_valid
from cloudgpu.rehearsal.server.endpoint import decode_body, forbidden_response, is_streaming
from cloudgpu.rehearsal.server.http_message import DropConnectionError, Headers, HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.http_server import LoopbackServer


def framed(parts: list[bytes], trailer: str = "x-amz-checksum-crc32:AAAA==") -> bytes:
    chunks = b"".join(f"{len(part):x};chunk-signature=ab\r\n".encode() + part + b"\r\n" for part in parts if part)
    return chunks + f"0\r\n{trailer}\r\n\r\n".encode()


@given(parts=st.lists(st.binary(max_size=50), max_size=5))
def test_streaming_upload_chunks_are_decoded_to_the_body(parts):
    body = b"".join(parts)
    headers = Headers(
        {
            "X-Amz-Content-SHA256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "x-amz-decoded-content-length": str(len(body)),
            "Content-Encoding": "aws-chunked,gzip",
        }
    )
    request = HttpRequest("PUT", "/b/k", headers, framed(parts))
    assert is_streaming(request)
    got = decode_body(request)
    assert got.body == body
    assert got.headers.find("content-encoding") == "gzip"
    assert got.headers.find("x-amz-checksum-crc32") == "AAAA=="
    assert got.headers.find("content-length") == str(len(body))


@pytest.mark.parametrize("body", [b"", b"zz\r\n", b"5\r\nab\r\n", b"ff", b"1\r\nab0\r\n\r\n"])
def test_malformed_upload_chunks_are_rejected(body):
    headers = Headers({"x-amz-content-sha256": "STREAMING-X", "x-amz-decoded-content-length": "5"})
    with pytest.raises(ValueError, match=r"chunk|invalid literal"):
        decode_body(HttpRequest("PUT", "/b/k", headers, body))


def test_control_signature_is_valid_only_for_its_call():
    value = sign_call("secret", "PUT", "/_cloudgpu/faults", b"[]")
    assert signature_is_valid("secret", value, "PUT", "/_cloudgpu/faults", b"[]")
    assert not signature_is_valid("other", value, "PUT", "/_cloudgpu/faults", b"[]")
    assert not signature_is_valid("secret", value, "GET", "/_cloudgpu/faults", b"[]")
    assert not signature_is_valid("secret", value, "PUT", "/_cloudgpu/stop", b"[]")
    assert not signature_is_valid("secret", value, "PUT", "/_cloudgpu/faults", b"[1]")
    assert "secret" not in value


@pytest.mark.parametrize(
    ("offset_s", "valid"), [(-299, True), (0, True), (299, True), (-301, False), (301, False), (1e9, False)]
)
def test_control_signature_is_valid_only_near_its_time(monkeypatch, offset_s, valid):
    """A signature from the future would otherwise stay valid until long after its time."""
    value = sign_call("secret", "PUT", "/_cloudgpu/stop", b"", at=1_000_000.0)
    monkeypatch.setattr(control.time, "time", lambda: 1_000_000.0 + offset_s)
    assert signature_is_valid("secret", value, "PUT", "/_cloudgpu/stop", b"") == valid


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -float("inf")])
def test_control_signature_of_no_real_time_is_rejected(at):
    assert not signature_is_valid("secret", sign_call("secret", "GET", "/", b"", at=at), "GET", "/", b"")


@pytest.mark.parametrize("value", ["", "x", "1:2", ":", "nan:0", "é:1"])
def test_invalid_or_expired_control_signature_is_rejected(value):
    assert not signature_is_valid("secret", value, "GET", "/", b"")


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:80", "LOCALHOST:80"])
def test_local_host_header_is_accepted(host):
    assert forbidden_response(HttpRequest("GET", "/", Headers({"host": host})), 80) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1:81"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:80"},
        {"Host": "127.0.0.1:80", "origin": "null"},
    ],
)
def test_browser_origins_and_foreign_hosts_are_rejected(headers):
    answer = forbidden_response(HttpRequest("GET", "/", Headers(headers)), 80)
    assert answer is not None
    assert answer.status == 403


@pytest.fixture
def echo():
    def application(request: HttpRequest) -> HttpResponse:
        if request.raw_path == "/drop":
            raise DropConnectionError
        if request.raw_path == "/bug":
            message = "a bug"
            raise RuntimeError(message)
        return HttpResponse(200, {"X-Path": request.target, "Server": "other"}, request.method.encode() + request.body)

    def guard(request: HttpRequest) -> HttpResponse | None:
        assert request.body == b""
        return HttpResponse(403, {}, b"refused") if request.raw_path == "/refused" else None

    server = LoopbackServer(application, guard)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def exchange(server: LoopbackServer, raw: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        peer.sendall(raw)
        peer.shutdown(socket.SHUT_WR)
        got = b""
        while data := peer.recv(65536):
            got += data
        return got


def test_server_listens_only_on_loopback(echo):
    assert echo.server_address[0] == "127.0.0.1"


def test_two_requests_are_served_over_one_connection(echo):
    got = exchange(echo, b"PUT /a?b=%20 HTTP/1.1\r\nContent-Length: 2\r\n\r\nhiGET /c HTTP/1.1\r\n\r\n")
    assert got.count(b"HTTP/1.1 200") == 2
    assert b"X-Path: /a?b=%20\r\n" in got
    assert b"PUThi" in got
    assert got.lower().count(b"server:") == 2


def test_chunked_transfer_encoding_is_decoded(echo):
    got = exchange(echo, b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n")
    assert got.endswith(b"PUTabcde")


def test_server_sends_100_continue_before_the_body(echo):
    with socket.create_connection(("127.0.0.1", echo.port), timeout=60) as peer:
        peer.sendall(b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert peer.recv(100).startswith(b"HTTP/1.1 100")
        peer.sendall(b"x")
        assert b"200" in peer.recv(1000)


LARGE = (1 << 20) + 1


def sent(path: bytes, size: int, *, chunked: bool) -> bytes:
    if chunked:
        return b"PUT %b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (path, size, b"x" * size)
    return b"PUT %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (path, size, b"x" * size)


@pytest.mark.parametrize("chunked", [False, True])
def test_large_body_is_accepted_only_from_authorized_requests(echo, chunked):
    assert exchange(echo, sent(b"/refused", LARGE - 1, chunked=chunked)).count(b"HTTP/1.1 200") == 1
    assert exchange(echo, sent(b"/", LARGE, chunked=chunked)).endswith(b"PUT" + b"x" * LARGE)
    got = exchange(echo, sent(b"/refused", LARGE, chunked=chunked) + b"GET /next HTTP/1.1\r\n\r\n")
    assert b"403" in got.partition(b"refused")[0]
    assert b"X-Path: /next" in got, "the refused body was not read to its end"


@pytest.mark.parametrize("chunked", [False, True])
def test_rejected_body_is_not_held_in_memory(echo, chunked):
    head = sent(b"/refused", 0, chunked=chunked).partition(b"\r\n\r\n")[0]
    head = head if chunked else head.replace(b"Length: 0", b"Length: %d" % (64 << 20))
    piece = b"x" * (1 << 20)
    with socket.create_connection(("127.0.0.1", echo.port), timeout=20) as peer:
        tracemalloc.start()
        peer.sendall(head + b"\r\n\r\n")
        for _ in range(64):
            peer.sendall(b"100000\r\n" + piece + b"\r\n" if chunked else piece)
        peer.sendall(b"0\r\n\r\n" if chunked else b"")
        assert b"403" in peer.recv(1000)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 8 << 20


def test_large_rejected_upload_gets_403_before_sending_its_body(echo):
    with socket.create_connection(("127.0.0.1", echo.port), timeout=60) as peer:
        peer.sendall(b"PUT /refused HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % LARGE)
        assert peer.recv(1000).startswith(b"HTTP/1.1 403")


def test_negative_chunk_size_is_rejected(echo):
    assert b" 400 " in exchange(echo, b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc")


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
@pytest.mark.parametrize("length", [b"-1", b"99999999999", b"x", b"9" * 5_000])
def test_invalid_content_length_is_rejected(echo, length, expect):
    assert b" 400 " in exchange(echo, b"PUT / HTTP/1.1\r\n" + expect + b"Content-Length: " + length + b"\r\n\r\n")


def test_dropped_connection_gets_no_response(echo):
    assert exchange(echo, b"GET /drop HTTP/1.1\r\n\r\n") == b""


def test_unexpected_exception_returns_500_and_server_continues(echo):
    assert b" 500 " in exchange(echo, b"GET /bug HTTP/1.1\r\n\r\n")
    assert b" 200 " in exchange(echo, b"GET / HTTP/1.1\r\n\r\n")
