"""A paramiko channel that sends nothing after CLOSE and records how it was closed."""

import contextlib
from collections.abc import Iterator

import paramiko

_MSG_CLOSE = 97
_MSG_REQUEST = 98
_MSG_FAILURE = 100
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
            "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}  # fmt: skip


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

    def close(self) -> None:
        """Close both directions."""
        self._close_in_order()

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

    def _close_in_order(self) -> None:
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
        self._close_in_order()
        self.transport._unlink_channel(self.chanid)

    def _request_failed(self, message: paramiko.Message) -> None:
        del message
        self.refused = True
        self._close_in_order()

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
