"""User data that is small and unpacks to more than a machine has."""

import base64
import gzip
import time

import pytest

from cloudgpu.rehearsal.nodes.boot.user_data import parse

MIB = 1 << 20


def mime(parts: list[bytes]) -> bytes:
    body = b"".join(
        b"--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: binary\n\n" + part + b"\n" for part in parts
    )
    return b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n' + body + b"--b--\n"


@pytest.mark.parametrize("outer", [lambda data: data, gzip.compress], ids=["plain", "packed"])
def test_many_packed_parts_are_bounded_together(outer):
    part = base64.encodebytes(gzip.compress(b"#!/bin/sh\n" + b"\n" * (15 * MIB)))
    head = b"--b\nContent-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n"
    data = (
        b'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n' + (head + part + b"\n") * 20 + b"--b--\n"
    )
    found = parse(outer(data))
    assert sum(len(one.body) for one in found.parts) <= 17 * MIB
    assert len(found.refused) == 19
    assert "16 MiB in total" in found.refused[0]


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
def test_no_user_data_hangs_or_breaks_the_node(data):
    began = time.process_time()
    found = parse(data)
    assert sum(len(one.body) for one in found.parts) <= 16 * MIB
    assert time.process_time() - began < 20
