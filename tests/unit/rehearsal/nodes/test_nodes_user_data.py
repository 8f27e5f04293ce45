"""User data is read as cloud-init reads it, and nothing of it is dropped in silence."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.nodes.boot.user_data import UserData, UserDataPart, parse

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


def test_a_multipart_message_gives_its_parts_in_order_with_harmless_names():
    data = parse(_MIME)
    assert data.parts == (
        UserDataPart("boothook", "expiry.sh", b"#!/bin/sh\necho hook"),
        UserDataPart("script", "_.._boot_strap.sh", b"#!/bin/sh\necho script\n"),
    )
    assert data.refused == ("part-003: cloud-config is not simulated and was ignored",)
    assert [part.name for part in data.of("boothook")] == ["expiry.sh"]


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress])
def test_plain_forms(pack):
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
def test_what_is_not_simulated_is_refused_by_name(data, word):
    found = parse(data)
    assert found.parts == ()
    assert word in found.refused[0]


@given(st.binary(max_size=2000))
def test_rubbish_never_raises_and_is_never_lost(data):
    found = parse(data)
    assert bool(found.parts or found.refused) == bool(data.strip()) or data.startswith(b"\x1f\x8b") or b":" in data
