"""The paramiko transport that every connection of this room uses."""

import contextlib
import logging
import socket
import threading
from collections.abc import Sequence
from typing import ClassVar

import paramiko
from paramiko.packet import Packetizer

LOST = (paramiko.SSHException, EOFError, OSError)
"""What paramiko raises when a connection does not come about or breaks."""

_WINDOW_BYTES = 16 << 20
_PACKET_BYTES = 1 << 15
_MSG_CHANNEL_CLOSE = 97
_MSG_CHANNEL_REQUEST = 98
_MSG_CHANNEL_FAILURE = 100
_MSG_GLOBAL_REQUEST = bytes([80])
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
            "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}  # fmt: skip

# Without a handler of its own, logging writes paramiko's tracebacks to the user's terminal.
logging.getLogger("cloudgpu.ssh").addHandler(logging.NullHandler())


class RefusedChannel(paramiko.SSHException):  # type: ignore[misc]  # paramiko has no types
    """The server opens no further channel on this connection."""


class _CountingPackets(Packetizer):  # type: ignore[misc]  # paramiko has no types
    """Counts what arrives, so that silence can be told from a long quiet command."""

    heard = 0
    # AES may carry 2^32 blocks under one key (RFC 4344). Paramiko's 512 MiB would interrupt every larger transfer.
    REKEY_BYTES = 1 << 34

    def read_message(self) -> tuple[int, paramiko.Message]:
        kind, message = super().read_message()
        self.heard += 1
        return kind, message


def _first(preferred: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """`known` with the preferred names in front; names that this paramiko lacks are left out."""
    front = tuple(name for name in preferred if name in known)
    return front + tuple(name for name in known if name not in front)


def _on_request(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Paramiko ignores `exit-signal`; without it a killed command looks like a lost connection."""
    if message.get_text() != "exit-signal":
        message.rewind()
        message.get_int()  # the channel number, which the transport has read before
        channel._handle_request(message)
        return
    message.get_boolean()
    channel.exit_status = 128 + _SIGNALS.get(message.get_text(), 0)
    channel.status_event.set()


def _on_close(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Remember that the server closed the channel: paramiko also closes every channel of a link that broke."""
    channel.closed_by_peer = True
    channel._handle_close(message)


def _on_failure(channel: paramiko.Channel, message: paramiko.Message) -> None:
    """Remember that the server refused what was asked on this channel."""
    channel.refused = True
    channel._request_failed(message)


class Link(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """An SSH transport with this project's preferences.

    AES-GCM needs one pass where CTR with an HMAC needs two; curve25519 is the cheapest exchange that every
    server knows.
    """

    _preferred_ciphers = _first(
        ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
        tuple(name for name in paramiko.Transport._preferred_ciphers if "cbc" not in name),
    )
    _preferred_kex = _first(("curve25519-sha256@libssh.org",), paramiko.Transport._preferred_kex)
    _preferred_macs = tuple(
        name
        for name in _first(("hmac-sha2-256-etm@openssh.com",), paramiko.Transport._preferred_macs)
        if "md5" not in name and name != "hmac-sha1-96"
    )
    _channel_handler_table: ClassVar[dict[int, object]] = {
        **paramiko.Transport._channel_handler_table,
        _MSG_CHANNEL_CLOSE: _on_close,
        _MSG_CHANNEL_REQUEST: _on_request,
        _MSG_CHANNEL_FAILURE: _on_failure,
    }

    def __init__(self, opened: socket.socket | paramiko.Channel, *, without_keys: Sequence[str] = ()) -> None:
        super().__init__(
            opened,
            default_window_size=_WINDOW_BYTES,
            default_max_packet_size=_PACKET_BYTES,
            disabled_algorithms={"keys": list(without_keys)},
            packetizer_class=_CountingPackets,
        )
        self.set_log_channel("cloudgpu.ssh")
        self._held: list[paramiko.Message] = []

    @property
    def heard(self) -> int:
        """How many packets have arrived so far."""
        return int(self.packetizer.heard)

    @property
    def channels(self) -> int:
        """How many channels are open or being opened."""
        return len(self._channels)

    def open_session(self, *, timeout: float) -> paramiko.Channel:
        """A channel for one command.

        Raises:
            RefusedChannel: The server allows no further one on this connection; the others go on.
        """
        try:
            return super().open_session(timeout=timeout)
        except paramiko.SSHException as err:
            # Threads that fail at once take each other's exception away; the one left without gets this text.
            if isinstance(err, paramiko.ChannelException) or (self.is_active() and "Unable to open" in str(err)):
                raise RefusedChannel(str(err)) from err
            raise

    def probe(self) -> None:
        """Ask for any answer. Servers answer an unknown request with a refusal, which is sign enough."""
        message = paramiko.Message()
        message.add_byte(_MSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(b=True)
        self._send_user_message(message)

    def _send_user_message(self, message: paramiko.Message) -> None:
        """Send, or hold back while keys are exchanged anew.

        Other threads wait for the end of that. The reading thread brings the end about, so it must not wait: paramiko's
        own does, stands still for half a minute and gives the connection up.
        """
        if threading.current_thread() is self and not self.clear_to_send.is_set():
            self._held.append(message)
        else:
            super()._send_user_message(message)

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)
        held, self._held = self._held, []
        for late in held:
            super()._send_user_message(late)

    def hang_up(self) -> None:
        """End the connection now, whatever is under way on it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the reading thread at once; close alone does not
        self.close()
