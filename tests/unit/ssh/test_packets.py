"""Large packets are built with fewer copies and have the usual format."""

import io
import os
import struct

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.packet import Packetizer

from cloudgpu.ssh.transport import _CountingPackets


class Wire(io.BytesIO):
    """A socket that stores everything sent."""

    def send(self, data: bytes) -> int:
        return self.write(data)


def packets(kind: type[Packetizer], block: int) -> Packetizer:
    made = kind(Wire())
    key, iv = os.urandom(16), os.urandom(12)
    made.set_outbound_cipher(AESGCM(key), block, None, 16, b"", aead=True, iv_out=iv)
    return made


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("size", [1, 4095, 4096, *range(32690, 32769)])
def test_optimized_packet_matches_paramiko_length_padding_and_payload(block: int, size: int) -> None:
    payload = os.urandom(size)
    made, usual = (packets(kind, block)._build_packet(payload) for kind in (_CountingPackets, Packetizer))
    assert len(made) == len(usual)
    assert made[: 5 + size] == usual[: 5 + size]
    length, count = struct.unpack(">IB", made[:5])
    assert (length, count) == (len(made) - 4, len(made) - 5 - size)
    assert (length % block, count >= 4) == (0, True)
