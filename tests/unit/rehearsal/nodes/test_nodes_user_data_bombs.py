"""Small user data that decompresses to more than the machine's memory."""

import base64
import gzip
import time

import pytest

from cloudgpu.rehearsal.nodes.boot import parse

MIB = 1 << 20


def mime(parts: list[bytes]) -> bytes:
    body = b"".join(
        b"--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: binary\n\n" + part + b"\n" for part in parts
    )
    return b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n' + body + b"--b--\n"


@pytest.mark.parametrize("outer", [lambda data: data, gzip.compress], ids=["plain", "packed"])
def test_total_size_of_compressed_parts_is_limited(outer):
    part = base64.encodebytes(gzip.compress(b"#!/bin/sh\n" + b"\n" * (15 * MIB)))
    head = b"--b\nContent-Type: application/gzip\nContent-Transfer-Encoding: base64\n\n"
    data = (
        b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n' + (head + part + b"\n") * 20 + b"--b--\n"
    )
    found = parse(outer(data))
    assert found.parts == ()
    (reason,) = found.refused
    assert "16 MiB in total" in reason


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(b"#!" + b"\0" * (64 * MIB)),
        gzip.compress(gzip.compress(b"#!" + b"\0" * (1 << 20))),
        b"\x1f\x8b" + b"rubbish" * 100,
        b"MIME-Version: 1.0\n" + b"".join(
            b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (at, at) for at in range(3000)
        ),
        mime([b"#!/bin/sh\n"] * 3000),
        b"MIME-Version: 1.0\nContent-Type: " + b"a" * MIB,
    ],
    ids=["bomb", "twice", "damaged", "nested", "many", "long-field"],
)  # fmt: skip
def test_malicious_user_data_is_parsed_within_time_and_size_limits(data):
    began = time.process_time()
    found = parse(data)
    assert sum(len(one.body) for one in found.parts) <= 16 * MIB
    assert time.process_time() - began < 20
