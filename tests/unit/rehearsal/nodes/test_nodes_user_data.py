"""User data is parsed like cloud-init parses it, and nothing is dropped silently."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.nodes.boot import UserData, UserDataPart, parse

_MIME = b"""Content-Type: multipart/mixed; boundary="XX"
MIME-Version: 1.0

--XX
Content-Type: text/cloud-boothook; charset="utf-8"
Content-Disposition: attachment; filename="expiry.sh"

#!/bin/sh
echo hook
--XX
Content-Type: text/x-shellscript; charset="utf-8"
Content-Transfer-Encoding: base64
Content-Disposition: attachment; filename="../../boot strap.sh"

IyEvYmluL3NoCmVjaG8gc2NyaXB0Cg==
--XX
Content-Type: text/cloud-config

runcmd: [ls]
--XX--
"""


def test_multipart_user_data_yields_ordered_parts_with_safe_names():
    data = parse(_MIME)
    assert data.parts == (
        UserDataPart("boothook", "expiry.sh", b"#!/bin/sh\necho hook"),
        UserDataPart("script", ".._.._bootstrap.sh", b"#!/bin/sh\necho script\n"),
    )
    assert data.refused == ("part-003: cloud-config is not simulated and was ignored",)
    assert [part.name for part in data.of("boothook")] == ["expiry.sh"]


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_plain_and_gzipped_user_data_is_parsed(pack):
    assert parse(pack(b"#!/bin/sh\nls")).parts == (UserDataPart("script", "part-001", b"#!/bin/sh\nls"),)
    assert parse(pack(b"#cloud-boothook\n#!/bin/sh\nls")).parts == (
        UserDataPart("boothook", "part-001", b"#!/bin/sh\nls"),
    )
    assert parse(pack(_MIME)).parts == parse(_MIME).parts
    assert parse(pack(b"  \n")) == UserData(())


@pytest.mark.parametrize(
    ("data", "word"),
    [(b"#cloud-config\npackages: [x]", "cloud-config"), (b"hello", "hello"), (b"\x1f\x8bxx", "gzip"),
     (gzip.compress(b"#!/bin/sh\n" + b"x" * (17 << 20)), "16 MiB")],
)  # fmt: skip
def test_unsupported_user_data_is_rejected_with_a_reason(data, word):
    found = parse(data)
    assert found.parts == ()
    assert word in found.refused[0]


@given(st.binary(max_size=2000))
def test_random_user_data_never_raises_or_is_dropped(data):
    found = parse(data)
    assert bool(found.parts or found.refused) == bool(data.strip()) or data.startswith(b"\x1f\x8b") or b":" in data


def test_scripts_run_in_the_order_of_their_names_and_a_later_one_replaces_its_namesake():
    names = ["b", "a", "b"]
    text = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=x\n"
    for number, name in enumerate(names):
        disposition = f"attachment; filename={name}"
        text += f"\n--x\nContent-Type: text/x-shellscript\nContent-Disposition: {disposition}\n\n#!/bin/sh\n{number}"
    assert [(part.name, part.body[-1:]) for part in parse(f"{text}\n--x--\n".encode()).of("script")] == [
        ("a", b"1"),
        ("b", b"2"),
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_MIME.replace(b"echo hook", b"echo \xe9"), "not UTF-8, so no part of it is read"),
        (b"#!/bin/sh\necho \xe9", "not UTF-8, so it is not run"),
        (_MIME.replace(b"MIME-Version: 1.0\n", b""), "begins with"),
        (gzip.compress(_MIME)[:-20], "incomplete"),
    ],
)
def test_user_data_that_cloud_init_does_not_run_is_rejected_with_a_reason(data, reason):
    found = parse(data)
    assert found.parts == ()
    assert reason in found.refused[0]
