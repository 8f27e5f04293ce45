"""The paramiko transport and channel that all connections in this package use."""

import contextlib
import logging
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import ClassVar

import paramiko
from paramiko.packet import Packetizer

from cloudgpu.text import printable

_MSG_CLOSE = 97
_MSG_REQUEST = 98
_MSG_FAILURE = 100
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
            "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}  # fmt: skip
LOST = (paramiko.SSHException, EOFError, OSError)
"""Exceptions that paramiko raises when a connection cannot be opened or is lost."""
WINDOW_BYTES = 16 << 20
"""Receive window of a channel by default, for transfers over networks with long delays."""
_PACKET_BYTES = 1 << 15
_LARGE_BYTES = 1 << 12
_LONGEST_GREETING = 1 << 16
_LONGEST_REFUSAL = 200
_REMAINDER = "_Packetizer__remainder"
"""Name of the attribute in which paramiko stores bytes that it has read past the greeting."""
_MSG_GLOBAL_REQUEST = bytes([80])


class OrderlyChannel(paramiko.Channel):  # type: ignore[misc]  # paramiko has no types
    """A channel that delays its CLOSE while another thread is creating and sending a message.

    In paramiko, the CLOSE can overtake that message. The server then receives a message for a channel that no longer
    exists and closes the whole connection, which also interrupts every other command on it.

    Attributes:
        closed_by_peer: True once the server has sent CLOSE. Remains False if the connection is lost instead.
        refused: True if the server rejected a request on the channel.
    """

    closed_by_peer = False
    refused = False
    _sending_now = 0
    _held_back: tuple[paramiko.Message, ...] = ()

    def request(self, kind: str, text: str, *, reply: bool) -> None:
        """Send a channel request without waiting for the response, which saves a round trip."""
        message = paramiko.Message()
        message.add_byte(bytes([_MSG_REQUEST]))
        message.add_int(self.remote_chanid)
        message.add_string(kind)
        message.add_boolean(reply)
        message.add_string(text.encode("utf-8", "surrogateescape"))
        with self._sending():
            if self.closed:
                raise OSError("the channel is closed")
            self.transport._send_user_message(message)

    def recv(self, nbytes: int) -> bytes:
        """Return at most `nbytes` bytes of standard output, and replenish the receive window when necessary."""
        with self._sending():
            return bytes(super().recv(nbytes))

    def recv_stderr(self, nbytes: int) -> bytes:
        """Return at most `nbytes` bytes of standard error."""
        with self._sending():
            return bytes(super().recv_stderr(nbytes))

    def shutdown(self, how: int) -> None:
        """Shut down one or both directions, like `socket.shutdown`."""
        with self._sending():
            super().shutdown(how)

    def _send(self, content: bytes, message: paramiko.Message) -> int:
        with self._sending():
            return int(super()._send(content, message))

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        with self.lock:
            self._sending_now += 1
        try:
            yield
        finally:
            with self.lock:
                self._sending_now -= 1
                late = () if self._sending_now else self._held_back
                if late:
                    self._held_back = ()
            self._send_closing(late)

    def close(self) -> None:
        """Close the channel. Send the closing messages now, or after the messages that other threads are sending."""
        with self.lock:
            if not self.active or self.closed:
                return
            last = tuple(message for message in self._close_internal() if message is not None)
            if self._sending_now:
                self._held_back, last = last, ()
        self._send_closing(last)

    def _send_closing(self, messages: tuple[paramiko.Message, ...]) -> None:
        """Send the closing messages, unless the connection is already lost."""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            for message in messages:
                self.transport._send_user_message(message)

    def _handle_close(self, message: paramiko.Message) -> None:
        del message
        self.closed_by_peer = True
        self.close()
        self.transport._unlink_channel(self.chanid)

    def _request_failed(self, message: paramiko.Message) -> None:
        del message
        self.refused = True
        self.close()

    def _handle_request(self, message: paramiko.Message) -> None:
        """Record the `exit-signal`, which paramiko ignores, to distinguish a killed command from a lost connection."""
        if message.get_text() != "exit-signal":
            message.rewind()
            message.get_int()  # the channel number, which the transport has already read
            super()._handle_request(message)
            return
        message.get_boolean()
        self.exit_status = 128 + _SIGNALS.get(message.get_text(), 0)
        self.status_event.set()


HANDLERS = {
    **paramiko.Transport._channel_handler_table,
    _MSG_CLOSE: lambda channel, message: channel._handle_close(message),
    _MSG_FAILURE: lambda channel, message: channel._request_failed(message),
    _MSG_REQUEST: lambda channel, message: channel._handle_request(message),
}
"""Channel message handlers for the transport. Paramiko's own table bypasses the overrides in `OrderlyChannel`."""


# Without this handler, logging would write paramiko's tracebacks to the user's terminal.
logging.getLogger("cloudgpu.ssh").addHandler(logging.NullHandler())


class RefusedChannel(paramiko.SSHException):  # type: ignore[misc]  # paramiko has no types
    """The server refused a channel. The connection and its other channels are unaffected.

    Attributes:
        code: Reason code of RFC 4254, or 0 if unknown.
        reason: The server's own text, such as `Connection refused`; empty if it sent none.
    """

    PROHIBITED = 1

    def __init__(self, message: str, code: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class _CountingPackets(Packetizer):  # type: ignore[misc]  # paramiko has no types
    """A packetizer that counts received packets, to distinguish a lost connection from a command without output."""

    packets = 0
    silent = False
    """True if the server did not send its greeting in time."""
    # RFC 4344 allows 2^32 AES blocks (64 GiB) per key. Paramiko's limit of 512 MiB would interrupt transfers with many
    # key re-exchanges.
    REKEY_BYTES = 1 << 34

    def _build_packet(self, payload: bytes) -> bytes:
        """Build a packet. Paramiko's version copies a large payload twice."""
        if len(payload) < _LARGE_BYTES:
            return bytes(super()._build_packet(payload))
        # The padding depends only on the length modulo the cipher's block size, which divides 256.
        filling = super()._build_packet(payload[: len(payload) % 256])
        count = filling[4]
        return b"".join((struct.pack(">IB", len(payload) + count + 1, count), payload, filling[-count:]))

    def readline(self, timeout: float) -> str:
        """Return one line of the server's greeting. Unlike paramiko's version, this one limits the line's length."""
        line: bytes = getattr(self, _REMAINDER)
        while b"\n" not in line:
            if len(line) > _LONGEST_GREETING:
                raise paramiko.SSHException(f"its greeting is longer than {_LONGEST_GREETING} bytes")
            try:
                line += self._read_timeout(timeout)
            except TimeoutError:
                self.silent = True
                raise
        line, _, rest = line.partition(b"\n")
        setattr(self, _REMAINDER, rest)
        return line.removesuffix(b"\r").decode("utf-8", "replace")

    def read_message(self) -> tuple[int, paramiko.Message]:
        kind, message = super().read_message()
        self.packets += 1
        return kind, message


def _preferred_first(preferred: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return `known` with the preferred names first. Preferred names that this paramiko version lacks are omitted."""
    front = tuple(name for name in preferred if name in known)
    return front + tuple(name for name in known if name not in front)


class Link(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """An SSH transport with cloudgpu's choice of algorithms.

    AES-GCM needs one pass over the data, while CTR with an HMAC needs two. curve25519 is the cheapest key exchange that
    all current servers support.
    """

    _preferred_ciphers = _preferred_first(
        ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com"),
        tuple(name for name in paramiko.Transport._preferred_ciphers if "cbc" not in name),
    )
    _preferred_kex = _preferred_first(("curve25519-sha256@libssh.org",), paramiko.Transport._preferred_kex)
    _preferred_macs = tuple(
        name
        for name in _preferred_first(("hmac-sha2-256-etm@openssh.com",), paramiko.Transport._preferred_macs)
        if "md5" not in name and name != "hmac-sha1-96"
    )
    _channel_handler_table: ClassVar[dict[int, object]] = HANDLERS

    def __init__(self, opened: socket.socket | paramiko.Channel, *, without_keys: Sequence[str] = ()) -> None:
        super().__init__(
            opened,
            default_window_size=WINDOW_BYTES,
            default_max_packet_size=_PACKET_BYTES,
            disabled_algorithms={"keys": list(without_keys)},
            packetizer_class=_CountingPackets,
        )
        self.set_log_channel("cloudgpu.ssh")
        self._held: list[paramiko.Message] = []
        self._refusal = ""

    @property
    def packets_received(self) -> int:
        """Number of packets received so far."""
        return int(self.packetizer.packets)

    @property
    def unanswered(self) -> bool:
        """True if a handshake failed because the server stopped responding."""
        packets = self.packetizer
        return bool(packets.silent or packets.handshake_timed_out() or self.is_active())

    @property
    def channels(self) -> int:
        """Number of channels that are open or being opened."""
        return len(self._channels)

    def open_session(self, *, timeout: float, window_bytes: int = WINDOW_BYTES) -> OrderlyChannel:
        """Open a channel for one command. The server sends at most `window_bytes` before they are read."""
        return self.open("session", timeout=timeout, window_bytes=window_bytes)

    def open(
        self, kind: str, to: tuple[str, int] | None = None, *, timeout: float, window_bytes: int = WINDOW_BYTES
    ) -> OrderlyChannel:
        """Open a channel of any kind; `to` is the destination of a `direct-tcpip` channel."""
        try:
            channel: OrderlyChannel = self.open_channel(
                kind, to, ("127.0.0.1", 0) if to else None, window_size=window_bytes, timeout=timeout
            )
        except paramiko.SSHException as err:
            # Paramiko stores only one exception per connection. If two opens fail at the same time, one thread gets the
            # exception, and the other gets a generic exception with this text.
            if isinstance(err, paramiko.ChannelException):
                raise RefusedChannel(err.text, err.code, self._refusal) from err
            if self.is_active() and "Unable to open" in str(err):
                raise RefusedChannel(str(err)) from err
            raise
        channel.__class__ = OrderlyChannel  # paramiko has no other way to set the class of its channels
        return channel

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        """Record the server's reason for refusing a channel, which paramiko only logs."""
        message.get_int()  # the channel number
        message.get_int()  # the reason code
        self._refusal = printable(message.get_binary().decode("utf-8", "replace"))[:_LONGEST_REFUSAL]
        message.rewind()
        super()._parse_channel_open_failure(message)

    def probe(self) -> None:
        """Send OpenSSH's keepalive request. Any response, even a rejection, proves that the connection works."""
        message = paramiko.Message()
        message.add_byte(_MSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(b=True)
        self._send_user_message(message)

    def _send_user_message(self, message: paramiko.Message) -> None:
        """Send a message, or queue it during a key re-exchange.

        Other threads wait for the end of the re-exchange. The reading thread must not wait, because it completes the
        re-exchange. Paramiko's version lets this thread wait too, and drops the connection after 30 seconds.
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
        """Close the connection immediately, even if operations are in progress."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the reading thread immediately; close alone does not
        self.close()
