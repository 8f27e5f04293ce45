"""Lies that any HTTP server can tell, as values: the readers of this project are held against all of them."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.lying.server import PIECE, LyingServer, Request, answer, lying

ENDLESS = 4096
"""Pieces of 64 KiB: 256 MiB stand for a body without end."""
SLOW_S = 0.05
MANIFEST = json.dumps({"schemaVersion": 2, "config": {}, "layers": [{"size": 5}]}).encode()

Tell = Callable[[LyingServer, Request], Iterable[bytes]]


@dataclass(frozen=True)
class Lie:
    """A lie by its name; `tell` gets the server, which knows its own address, and the request."""

    name: str
    tell: Tell

    def __str__(self) -> str:
        return self.name


def _fixed(name: str, data: bytes) -> Lie:
    return Lie(name, lambda _server, _request: [data])


def _to(name: str, location: str) -> Lie:
    return _fixed(name, answer("302 Found", location=location))


def _slow(data: bytes, rest: bytes) -> Tell:
    """`data` at once, then byte by byte for as long as somebody listens."""

    def tell(server: LyingServer, _request: Request) -> Iterator[bytes]:
        yield data
        for _ in range(10_000):
            server.pause(SLOW_S)
            yield rest

    return tell


def _endless(head: bytes, piece: bytes = PIECE) -> Tell:
    def tell(_server: LyingServer, _request: Request) -> Iterator[bytes]:
        yield head
        for _ in range(ENDLESS):
            yield piece

    return tell


def _in_circles(server: LyingServer, request: Request) -> Iterable[bytes]:
    number = int(request.path.rpartition("hop=")[2] or 0) if "hop=" in request.path else 0
    return [answer("302 Found", location=f"{server.url}/next?hop={number + 1}")]


LENGTHS = (
    _fixed("length too large", answer(body=MANIFEST, content_length=str(len(MANIFEST) + 1000))),
    _fixed("length too small", answer(body=MANIFEST, content_length="7")),
    _fixed("length of 10^30", answer(body=MANIFEST, content_length="1" + "0" * 30)),
    _fixed("length of 5000 digits", answer(body=b"<html>", content_length="9" * 5000)),
    _fixed("negative length", answer(body=b"<html>", content_length="-5")),
    _fixed("length that is a superscript", answer(body=b"x", content_length="\xb2")),
    Lie("body without end", _endless(b"HTTP/1.1 200 OK\r\n\r\n")),
    Lie("body without end in chunks", _endless(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + PIECE + b"\r\n")),
    _fixed("chunk of no size", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n<html>"),
    _fixed("chunk that breaks off", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n<html>"),
)  # fmt: skip
HEADS = (
    _fixed("nothing at all", b""),
    _fixed("no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n"),
    _fixed("status that is no number", b"HTTP/1.1 abc OK\r\n\r\n"),
    _fixed("status 999", answer("999 \x1b[31mred\x1b[0m")),
    _fixed("status 204", b"HTTP/1.1 204 No Content\r\n\r\n"),
    Lie("100 Continue without end", _endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)),
    _fixed("ten thousand headers", b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 10_000 + b"\r\n"),
    _fixed("header of a megabyte", b"HTTP/1.1 200 OK\r\nX-Y: " + b"z" * 2**20 + b"\r\n\r\n"),
    Lie("header byte by byte", _slow(b"HTTP/1.1 200 OK\r\nX-Y: ", b"z")),
    Lie("body byte by byte", _slow(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"z")),
    Lie("error byte by byte", _slow(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 1000000\r\n\r\n", b"z")),
    Lie("redirect byte by byte", _slow(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 9999999\r\n\r\n", b"z")),
)
CONTENTS = (
    _fixed("a web page", answer(body=b"<!doctype html><title>Log in</title>", content_type="text/html")),
    _fixed("packed", answer(body=gzip.compress(b"0" * 10**7), content_encoding="gzip")),
    _fixed("an S3 error with status 200", answer(
        body=b"<?xml version='1.0'?><Error><Code>InternalError</Code></Error>")),
    _fixed("another range", answer("206 Partial Content", body=b"12345", content_range="bytes 5-9/1000")),
    _fixed("no range", answer("206 Partial Content", body=b"12345")),
    _fixed("range of another unit", answer("206 Partial Content", body=b"12345", content_range="lines 0-4/5")),
    _fixed("range of 10^30", answer("206 Partial Content", body=b"1", content_range=f"bytes 0-0/1{'0' * 30}")),
    _fixed("range of a superscript", answer("206 Partial Content", body=b"1", content_range="bytes 0-0/\xb2")),
)  # fmt: skip
REDIRECTS = (
    Lie("redirect without end", _in_circles),
    _fixed("redirect to nowhere", answer("302 Found")),
    _to("redirect to a file", "file:///etc/hostname"),
    _to("redirect to FTP", "ftp://127.0.0.1/x"),
    _to("redirect to the metadata service", "http://169.254.169.254/latest/meta-data/"),
    _to("redirect to no address", "https://[x/"),
    _to("redirect to port 99999999", "http://127.0.0.1:99999999/"),
    _to("redirect to a word as port", "http://127.0.0.1:http/"),
    _to("redirect to a name of 5000 letters", f"http://{'a' * 5000}/"),
    _to("redirect to a blank", "http://127.0.0.1/a b\x7fc"),
    _to("redirect to other letters", "http://127.0.0.1/\xe9\xfc"),
    _to("redirect to a screen", "javascript:\x1b[2J"),
)
LIES = (*LENGTHS, *HEADS, *CONTENTS, *REDIRECTS)
_SLOW = ("header byte by byte", "body byte by byte", "error byte by byte", "redirect byte by byte")
"""Each takes the whole time limit of a reader."""


def cases(lies: Iterable[Lie] = LIES) -> list[Any]:
    """Lies as the cases of a test."""
    return [pytest.param(one, id=str(one), marks=[pytest.mark.slow] if one.name in _SLOW else []) for one in lies]


@contextmanager
def telling(lie: Lie, host: str = "127.0.0.1") -> Iterator[LyingServer]:
    """Serve one lie."""
    served: list[LyingServer] = []
    with lying(lambda request: lie.tell(served[0], request), host) as server:
        served.append(server)
        yield server
