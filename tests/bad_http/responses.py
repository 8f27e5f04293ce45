"""Invalid and hostile HTTP responses, which every HTTP client of this project must survive."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bad_http.server import PIECE, RawServer, Request, http_response, raw_server

ENDLESS = 4096
"""Number of 64 KiB pieces in an endless body: 256 MiB."""
SLOW_S = 0.05
MANIFEST = json.dumps({"schemaVersion": 2, "config": {}, "layers": [{"size": 5}]}).encode()

BadResponder = Callable[[RawServer, Request], Iterable[bytes]]


@dataclass(frozen=True)
class BadResponse:
    """A named response. `respond` gets the server, which knows its own address, and the request."""

    name: str
    respond: BadResponder

    def __str__(self) -> str:
        return self.name


def _fixed(name: str, data: bytes) -> BadResponse:
    return BadResponse(name, lambda _server, _request: [data])


def _redirect(name: str, location: str) -> BadResponse:
    return _fixed(name, http_response("302 Found", location=location))


def _slow(data: bytes, rest: bytes) -> BadResponder:
    """Return a responder that sends `data` and then `rest` repeatedly, with pauses, until the client disconnects."""

    def respond(server: RawServer, _request: Request) -> Iterator[bytes]:
        yield data
        for _ in range(10_000):
            server.pause(SLOW_S)
            yield rest

    return respond


def _endless(head: bytes, piece: bytes = PIECE) -> BadResponder:
    def respond(_server: RawServer, _request: Request) -> Iterator[bytes]:
        yield head
        for _ in range(ENDLESS):
            yield piece

    return respond


def _redirect_loop(server: RawServer, request: Request) -> Iterable[bytes]:
    number = int(request.path.rpartition("hop=")[2] or 0) if "hop=" in request.path else 0
    return [http_response("302 Found", location=f"{server.url}/next?hop={number + 1}")]


LENGTHS = (
    _fixed("length too large", http_response(body=MANIFEST, content_length=str(len(MANIFEST) + 1000))),
    _fixed("length too small", http_response(body=MANIFEST, content_length="7")),
    _fixed("length of 10^30", http_response(body=MANIFEST, content_length="1" + "0" * 30)),
    _fixed("length of 5000 digits", http_response(body=b"<html>", content_length="9" * 5000)),
    _fixed("negative length", http_response(body=b"<html>", content_length="-5")),
    _fixed("length that is a superscript", http_response(body=b"x", content_length="\xb2")),
    BadResponse("body without end", _endless(b"HTTP/1.1 200 OK\r\n\r\n")),
    BadResponse("body without end in chunks", _endless(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n")),
    _fixed("chunk of no size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n<html>"),
    _fixed("chunk that breaks off", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n<html>"),
)  # fmt: skip
HEADS = (
    _fixed("nothing at all", b""),
    _fixed("no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n"),
    _fixed("status that is no number", b"HTTP/1.1 abc OK\r\n\r\n"),
    _fixed("status 999", http_response("999 \x1b[31mred\x1b[0m")),
    _fixed("status 204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    BadResponse("100 Continue without end", _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)),
    _fixed("ten thousand headers", b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 10_000 + b"\r\n"),
    _fixed("header of a megabyte", b"HTTP/1.1 200 OK\r\nX-Y: " + b"z" * 2**20 + b"\r\n\r\n"),
    BadResponse("header byte by byte", _slow(b"HTTP/1.1 200 OK\r\nX-Y: ", b"z")),
    BadResponse("body byte by byte", _slow(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"z")),
    BadResponse("error byte by byte", _slow(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\n", b"z")),
    BadResponse(
        "redirect byte by byte", _slow(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 9999999\r\n\r\n", b"z")
    ),
)
CONTENTS = (
    _fixed("a web page", http_response(body=b"<!doctype html><title>Log in</title>", content_type="text/html")),
    _fixed("packed", http_response(body=gzip.compress(b"0" * 10**7), content_encoding="gzip")),
    _fixed("an S3 error with status 200", http_response(
        body=b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>")),
    _fixed("another range", http_response("206 Partial Content", body=b"12345", content_range="bytes 5-9/1000")),
    _fixed("no range", http_response("206 Partial Content", body=b"12345")),
    _fixed("range of another unit", http_response("206 Partial Content", body=b"12345", content_range="lines 0-4/5")),
    _fixed("range of 10^30", http_response("206 Partial Content", body=b"1", content_range=f"bytes 0-0/1{'0' * 30}")),
    _fixed("range of a superscript", http_response("206 Partial Content", body=b"1", content_range="bytes 0-0/\xb2")),
)  # fmt: skip
REDIRECTS = (
    BadResponse("redirect without end", _redirect_loop),
    _fixed("redirect to nowhere", http_response("302 Found")),
    _redirect("redirect to a file", "file:///etc/hostname"),
    _redirect("redirect to FTP", "ftp://127.0.0.1/x"),
    _redirect("redirect to the metadata service", "http://169.254.169.254/latest/meta-data/"),
    _redirect("redirect to no address", "https://[x/"),
    _redirect("redirect to port 99999999", "http://127.0.0.1:99999999/"),
    _redirect("redirect to a word as port", "http://127.0.0.1:http/"),
    _redirect("redirect to a name of 5000 letters", f"http://{'a' * 5000}/"),
    _redirect("redirect to a blank", "http://127.0.0.1/a b\x7fc"),
    _redirect("redirect to other letters", "http://127.0.0.1/\xe9\xfc"),
    _redirect("redirect to a screen", "javascript:\x1b[2J"),
)
BAD_RESPONSES = (*LENGTHS, *HEADS, *CONTENTS, *REDIRECTS)
_SLOW = ("header byte by byte", "body byte by byte", "error byte by byte", "redirect byte by byte")
"""Responses that last as long as the timeout of the client."""


def cases(responses: Iterable[BadResponse] = BAD_RESPONSES) -> list[Any]:
    """Return responses as the parameters of a test."""
    return [pytest.param(bad, id=str(bad), marks=[pytest.mark.slow] if bad.name in _SLOW else []) for bad in responses]


@contextmanager
def bad_server(response: BadResponse, host: str = "127.0.0.1") -> Iterator[RawServer]:
    """Run a server that sends a bad response to every request, until the block ends."""
    servers: list[RawServer] = []
    with raw_server(lambda request: response.respond(servers[0], request), host) as server:
        servers.append(server)
        yield server
