"""Run a command over a channel: send its input and read its output, without deadlocks when buffers are full."""

import codecs
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cloudgpu.clock import Clock, require_not_cancelled
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.ssh.base import CHECK_NODE_HINT, TimeLimitError
from cloudgpu.ssh.transport import LOST, Link, OrderlyChannel
from cloudgpu.text import size_text

_CHUNK_BYTES = 1 << 24
_OVERHEAD_BYTES = 64
_LEAST_BYTES = 1 << 10
_INLINE_STDIN_BYTES = 1 << 16
_STDERR_KEPT_BYTES = 1 << 20
_TICK_S = 5.0
LEAST_BYTES_PER_S = 1024
"""Minimum speed of a transfer. A byte alone does not restart its time limit, or a node could delay it forever."""
LONGEST_LINE = 32 << 20
"""Maximum number of characters in a line. One MiB of log bytes that are not UTF-8 takes six MiB as JSON."""


@dataclass(frozen=True)
class KeepaliveLimits:
    """Time limits for a silent connection, in seconds: a keepalive is sent first, then the connection is closed."""

    probe_after_s: float = 10.0
    dead_after_s: float = 30.0


class _Wake:
    """An event shared by both output buffers.

    Paramiko clears the event when either buffer is empty, which would hide data in the other buffer.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.set = self._event.set
        self.wait = self._event.wait
        self.rearm = self._event.clear

    def clear(self) -> None:
        """Do nothing, so that paramiko cannot clear the event."""


class CommandSession:
    """A command on a channel. Call `start`, then read all of `output` before using `exit_code`."""

    def __init__(
        self,
        link: Link,
        channel: OrderlyChannel,
        *,
        who: str,
        clock: Clock,
        keepalive: KeepaliveLimits,
        hint: str = CHECK_NODE_HINT,
    ) -> None:
        self._link = link
        self._channel = channel
        self.who = who
        self.hint = hint
        self._clock = clock
        self._keepalive = keepalive
        self._wake = _Wake()
        self._closed_here = False
        self._limit_s: float | None = None
        self._whole_s: float | None = None
        self._end: float | None = None
        self._since = clock.monotonic()
        self._moved_bytes = 0
        self.stderr = bytearray()
        self.on_stderr: Callable[[bytes], None] | None = None
        """Called with each chunk of standard error, in the thread that reads `output`."""
        channel.in_buffer.set_event(self._wake)
        channel.in_stderr_buffer.set_event(self._wake)

    def start(self, wire: str, stdin: bytes | Iterable[bytes]) -> None:
        """Send the command and its input. If the server rejects the command, `output` raises an error."""
        try:
            self._channel.request("exec", wire, reply=True)
            if isinstance(stdin, bytes) and len(stdin) <= _INLINE_STDIN_BYTES:
                self._feed((stdin,) if stdin else ())
            else:
                pieces = (stdin,) if isinstance(stdin, bytes) else stdin
                threading.Thread(target=self._feed, args=(pieces,), daemon=True).start()
        except LOST as err:
            raise self._lost(err) from err

    def output(self, timeout_s: float | None = None, whole_s: float | None = None) -> Iterator[bytes]:
        """Yield standard output as it arrives, and keep the last MiB of standard error.

        The time limits start with the iteration. `timeout_s` restarts at each `renew`; standard input counts as
        transferred. `whole_s` never restarts.
        """
        self._limit_s = timeout_s
        self.renew()
        self._whole_s, self._end = whole_s, None if whole_s is None else self._since + whole_s
        packets, since = self._link.packets_received, self._clock.monotonic()
        try:
            while not self._finished():
                self._wake.rearm()
                if piece := self._take():
                    yield piece
                now = self._clock.monotonic()
                if self._link.packets_received != packets:
                    packets, since = self._link.packets_received, now
                require_not_cancelled()
                self._check_time()
                self._check_alive(now - since)
                if not self._more() and not self._finished():
                    self._wake.wait(self._pause_s())
            self._check_end()
        finally:
            with contextlib.suppress(*LOST):
                self._channel.close()

    def renew(self) -> None:
        """Restart the time limit of `output`."""
        self._since = self._clock.monotonic()
        self._moved_bytes = 0

    def count(self, size: int) -> None:
        """Count transferred bytes. Restart the time limit if they are as many as the minimum speed requires."""
        self._moved_bytes += size
        if self._limit_s is not None and self._moved_bytes >= self._limit_s * LEAST_BYTES_PER_S:
            self.renew()

    @property
    def exit_code(self) -> int:
        """Exit code: 128 + n after signal n, or 255 if the server closed the channel without an exit code."""
        status = int(self._channel.exit_status)
        return 255 if status < 0 else status

    def close(self) -> None:
        """Stop reading and close the channel, which also closes the remote command's pipes."""
        self._closed_here = True
        with contextlib.suppress(*LOST):
            self._channel.close()

    def end(self) -> None:
        """Send SIGTERM to the command and stop reading."""
        with contextlib.suppress(*LOST):
            self._channel.request("signal", "TERM", reply=False)
        self.close()

    def _take(self) -> bytes:
        """Read at most one chunk each of stderr and stdout, so that endless output cannot bypass the time limit."""
        try:
            if self._channel.recv_stderr_ready():
                piece = bytes(self._channel.recv_stderr(_CHUNK_BYTES))
                self.stderr += piece
                del self.stderr[:-_STDERR_KEPT_BYTES]
                if self.on_stderr is not None:
                    self.on_stderr(piece)
            return bytes(self._channel.recv(_CHUNK_BYTES)) if self._channel.recv_ready() else b""
        except LOST as err:
            raise self._lost(err) from err

    def _finished(self) -> bool:
        """Return True if all output was read and the channel is closed or has received an exit code and end of file."""
        complete = self._channel.status_event.is_set() and self._channel.eof_received
        return (self._channel.closed or complete) and not self._more()

    def _more(self) -> bool:
        return bool(self._channel.recv_ready() or self._channel.recv_stderr_ready())

    def _pause_s(self) -> float:
        tick = min(_TICK_S, self._keepalive.probe_after_s / 2)
        left_s = self._left_s()
        return tick if left_s is None else max(0.0, min(tick, left_s))

    def _left_s(self) -> float | None:
        now = self._clock.monotonic()
        ends = [] if self._limit_s is None else [self._since + self._limit_s]
        ends += [] if self._end is None else [self._end]
        return min((end - now for end in ends), default=None)

    def _check_time(self) -> None:
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            self.end()
            if self._end is not None and self._end <= self._clock.monotonic():
                message = f"{self.who}: the command did not finish within {self._whole_s:g} s"
                raise TimeLimitError(message, hint=self.hint)
            message = f"{self.who}: the command exceeded its time limit of {self._limit_s:g} s"
            if self._moved_bytes:
                message += f", in which only {size_text(self._moved_bytes)} were transferred"
            raise TimeLimitError(message, hint=self.hint)

    def _check_alive(self, silent_s: float) -> None:
        if silent_s >= self._keepalive.dead_after_s:
            self._link.hang_up()
            raise ConnectError(
                f"{self.who} has been silent for {silent_s:.0f} s; the command may still be running there",
                hint=self.hint,
            )
        if silent_s >= self._keepalive.probe_after_s:
            # In a separate thread, because sending blocks when the peer no longer reads.
            threading.Thread(target=_probe, args=(self._link,), daemon=True).start()

    def _check_end(self) -> None:
        if self._channel.refused:
            raise ConnectError(f"{self.who} refuses to run commands", hint="check that the user has a login shell")
        complete = self._channel.eof_received and self._channel.exit_status >= 0
        if not (complete or self._closed_here or self._channel.closed_by_peer):
            raise self._lost(self._link.get_exception())

    def _lost(self, err: BaseException | None) -> ConnectError:
        self._link.hang_up()
        return ConnectError(
            f"lost the connection to {self.who}: {str(err or '') or 'the other end closed it'}", hint=self.hint
        )

    def _feed(self, pieces: Iterable[bytes]) -> None:
        """Send standard input and then end of file.

        End of file is sent even if producing the input fails, so that the command does not wait forever. A command that
        stops reading early is not an error here; its exit code shows whether it failed.
        """
        # Send packet by packet, because paramiko's sendall copies the whole remainder for each packet. Paramiko
        # reserves 64 bytes of each packet, and splits a longer chunk into two packets.
        step = max(_LEAST_BYTES, self._channel.out_max_packet_size - _OVERHEAD_BYTES)
        with contextlib.suppress(*LOST):
            try:
                for piece in pieces:
                    for at in range(0, len(piece), step):
                        self._channel.sendall(piece[at : at + step])
                        self.count(min(step, len(piece) - at))
            finally:
                self._channel.shutdown_write()


class SessionStream:
    """A session whose output is read line by line. Implements `ssh.base.Stream`."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self.exit_code: int | None = None

    def lines(self, timeout_s: float | None = None) -> Iterator[str]:
        """Yield lines as they arrive, without the newline. Undecodable bytes are replaced."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        for piece in self._session.output(timeout_s):
            first, *others = decoder.decode(piece).split("\n")
            if not others:
                rest += first
                self._check_length(rest)
                continue
            yield rest + first
            yield from others[:-1]
            rest = others[-1]
        rest += decoder.decode(b"", final=True)
        if rest:
            yield rest
        self.exit_code = self._session.exit_code

    def _check_length(self, line: str) -> None:
        """Stop reading a line that would fill this machine's memory."""
        if len(line) > LONGEST_LINE:
            self.close()
            raise RemoteCommandError(
                f"{self._session.who} sent a line longer than {LONGEST_LINE >> 20} MiB", hint=self._session.hint
            )

    def renew(self) -> None:
        """Restart the time limit of `lines`."""
        self._session.renew()

    def close(self) -> None:
        """Stop reading."""
        self._session.close()

    @property
    def stderr(self) -> str:
        """Standard error received so far, truncated to the last MiB."""
        return self._session.stderr.decode("utf-8", "replace")


def _probe(link: Link) -> None:
    with contextlib.suppress(*LOST):
        link.probe()
