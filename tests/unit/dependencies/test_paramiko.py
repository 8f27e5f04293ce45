"""The undocumented parts of paramiko that `cloudgpu/ssh` relies on."""

import inspect
import io
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import paramiko
import pytest
from paramiko.packet import Packetizer

from cloudgpu.ssh.transport import Link, OrderlyChannel, RefusedChannel

OVERRIDDEN = [
    (Packetizer, "_build_packet", ["payload"]),
    (Packetizer, "readline", ["timeout"]),
    (Packetizer, "read_message", []),
    (paramiko.Transport, "_send_user_message", ["data"]),
    (paramiko.Transport, "_parse_newkeys", ["m"]),
    (paramiko.Channel, "_send", ["s", "m"]),
    (paramiko.Channel, "_handle_close", ["m"]),
    (paramiko.Channel, "_handle_request", ["m"]),
    (paramiko.Channel, "_request_failed", ["m"]),
]
CALLED = [
    (Packetizer, "_read_timeout", ["timeout"]),
    (paramiko.Transport, "_unlink_channel", ["chanid"]),
    (paramiko.Channel, "_close_internal", []),
    (paramiko.Channel, "_unlink", []),
    (paramiko.Channel, "_feed", ["m"]),
    (paramiko.Channel, "_set_transport", ["transport"]),
    (paramiko.Channel, "_set_window", ["window_size", "max_packet_size"]),
    (paramiko.Channel, "_set_remote_channel", ["chanid", "window_size", "max_packet_size"]),
]


@pytest.mark.parametrize(("owner", "name", "wanted"), OVERRIDDEN + CALLED, ids=str)
def test_private_methods_have_the_expected_parameters(owner: type, name: str, wanted: list[str]) -> None:
    found = list(inspect.signature(getattr(owner, name)).parameters)
    assert found == ["self", *wanted]


def test_packetizer_has_the_expected_remainder_field() -> None:
    assert vars(Packetizer(io.BytesIO()))["_Packetizer__remainder"] == b""
    assert Packetizer.REKEY_BYTES < 1 << 34


def test_algorithm_preferences_are_tuples_with_our_preferred_names() -> None:
    transport = paramiko.Transport
    for found in (transport._preferred_ciphers, transport._preferred_kex, transport._preferred_macs):
        assert isinstance(found, tuple)
    assert Link._preferred_ciphers[:2] == ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
    assert Link._preferred_kex[0] == "curve25519-sha256@libssh.org"
    assert Link._preferred_macs[0] == "hmac-sha2-256-etm@openssh.com"


def test_channel_message_numbers_map_to_the_expected_handlers() -> None:
    table = paramiko.Transport._channel_handler_table
    assert {97, 98, 100} <= set(table)
    assert [table[number].__name__ for number in (97, 98, 100)] == [
        "_handle_close",
        "_handle_request",
        "_request_failed",
    ]


def test_channel_and_transport_have_the_fields_we_use() -> None:
    channel = paramiko.Channel(1)
    for name in ("active", "closed", "transport", "chanid", "remote_chanid", "lock", "status_event", "exit_status"):
        assert hasattr(channel, name), name
    channel.in_buffer.feed(b"x")
    assert channel.recv_ready()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = paramiko.Transport(ours)
        for name in ("_channels", "clear_to_send", "packetizer", "sock", "auth_timeout", "banner_timeout"):
            assert hasattr(transport, name), name
        assert len(transport._channels) == 0


@dataclass
class Server(paramiko.ServerInterface):
    """An SSH server that accepts and records commands."""

    commands: list[bytes] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    def check_auth_none(self, username: str) -> int:
        del username
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        del chanid
        return paramiko.OPEN_SUCCEEDED if kind == "session" else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.commands.append(command)
        self.ready.set()
        return True


@pytest.fixture
def connected() -> Iterator[tuple[Link, paramiko.Transport, Server]]:
    """A link and a paramiko server connected by a socket pair, after key exchange."""
    ours, theirs = socket.socketpair()
    served, server = paramiko.Transport(theirs), Server()
    served.add_server_key(paramiko.ECDSAKey.generate())
    link = Link(ours)
    try:
        done = threading.Event()
        served.start_server(done, server)
        link.start_client(timeout=30)
        link.auth_none("ada")
        yield link, served, server
    finally:
        link.hang_up()
        served.close()
        for one in (link, served):
            one.join(10)


def opened(link: Link, served: paramiko.Transport) -> tuple[OrderlyChannel, paramiko.Channel]:
    channel = link.open_session(timeout=30)
    theirs = served.accept(30)
    assert theirs is not None
    return channel, theirs


def until(happened: Callable[[], bool]) -> None:
    """Wait for an effect of paramiko's reader thread."""
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def send_exit_signal(channel: paramiko.Channel, name: str) -> None:
    message = paramiko.Message()
    message.add_byte(bytes([98]))
    message.add_int(channel.remote_chanid)
    message.add_string("exit-signal")
    message.add_boolean(False)
    message.add_string(name)
    message.add_boolean(False)
    message.add_string("")
    message.add_string("")
    channel.transport._send_user_message(message)


def test_packets_are_counted_and_our_preferred_cipher_is_negotiated(
    connected: tuple[Link, paramiko.Transport, Server],
) -> None:
    link, served, _ = connected
    assert link.packets_received > 0
    assert (served.remote_cipher, link.local_cipher) == ("aes128-gcm@openssh.com", "aes128-gcm@openssh.com")


def test_opened_channel_uses_our_class_and_receives_its_messages(
    connected: tuple[Link, paramiko.Transport, Server],
) -> None:
    link, served, server = connected
    channel, theirs = opened(link, served)
    assert (type(channel), link.channels) == (OrderlyChannel, 1)
    channel.request("exec", "true", reply=False)
    assert server.ready.wait(30)
    assert server.commands == [b"true"]
    send_exit_signal(theirs, "KILL")
    theirs.close()
    until(lambda: channel.closed_by_peer)
    assert channel.recv(1) == b""
    assert (channel.exit_status, channel.closed_by_peer, channel.refused) == (128 + 9, True, False)
    until(lambda: link.channels == 0)


def test_rejected_channel_is_distinguished_from_a_broken_connection(
    connected: tuple[Link, paramiko.Transport, Server],
) -> None:
    link, _, _ = connected
    with pytest.raises(RefusedChannel):
        link.open("direct-tcpip", ("127.0.0.1", 9), timeout=30)
    assert link.is_active()


def test_rekeying_loses_no_messages(connected: tuple[Link, paramiko.Transport, Server]) -> None:
    """A key exchange ends in `_parse_newkeys`; `clear_to_send` is unset until then."""
    link, served, _ = connected
    channel, theirs = opened(link, served)
    link.renegotiate_keys()
    assert link.clear_to_send.wait(30)
    link.probe()
    channel.sendall(bytes(1 << 15))
    theirs.settimeout(30)
    assert len(theirs.recv(1 << 15)) > 0


def test_built_packet_starts_with_length_and_padding_size() -> None:
    payload = b"x" * 100
    packet = Packetizer(io.BytesIO())._build_packet(payload)
    length, filled = struct.unpack(">IB", packet[:5])
    assert length == len(packet) - 4
    assert packet[5 : 5 + len(payload)] == payload
    assert len(packet) == 5 + len(payload) + filled
