"""An SSH channel that runs a shell, a command or the SFTP server, with pipes or a terminal."""

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import asyncssh

from cloudgpu.rehearsal.nodes.processes import NodeRuntime

_PERMITTED_VARIABLES = ("LANG", "LC_")
_DRAIN_S = 0.25
_NOT_STARTED = 255
T = TypeVar("T")


class NodeSession(asyncssh.SSHServerSession[bytes]):
    """An SSH session that runs one process of a node and forwards its data in order, without a size limit.

    As with OpenSSH, a channel with pipes closes when the process has exited and its output is closed. A client that
    disconnects closes the pipes (or hangs up the terminal) but does not kill the process.
    """

    def __init__(self, body: NodeRuntime, user: str, home: str, environment: Mapping[str, str]) -> None:
        """Create the session without starting a process.

        Args:
            body: Runtime of the node's processes.
            user: Login name.
            home: Home directory of the login user, in which the process starts.
            environment: Environment variables of the process.
        """
        self._body = body
        self._home = home
        self._shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        own = {"USER": user, "LOGNAME": user, "HOME": home, "SHELL": self._shell}
        self._environment = dict(environment) | own
        self._channel: asyncssh.SSHServerChannel[bytes] | None = None
        self._argv: list[str] = []
        self._terminal = ""
        self._size = (80, 24, 0, 0)
        self._master = -1
        self._process: asyncio.subprocess.Process | None = None
        self._input: asyncio.WriteTransport | None = None
        self._started = False
        self._early: list[bytes] = []
        self._input_over = False
        self._outputs: list[asyncio.ReadTransport] = []
        self._ended = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._open_outputs = 0
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """Store the channel."""
        self._channel = chan
        # With a buffer limit of zero, "not paused" means that everything was sent to the client.
        chan.set_write_buffer_limits(high=0, low=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the pipes when the client disconnects, so that the process notices the disconnection."""
        del exc
        self._channel = None
        self._drained.set()
        self._close_pipes()

    def pty_requested(
        self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Mapping[int, int]
    ) -> bool:
        """Store the requested terminal type and size."""
        del term_modes
        self._terminal, self._size = term_type or "dumb", term_size
        return True

    def shell_requested(self) -> bool:
        """Prepare to run a shell that reads commands from the client."""
        self._argv = [self._shell]
        return True

    def exec_requested(self, command: str) -> bool:
        """Prepare to run one command line through the shell."""
        self._argv = [self._shell, "-c", command]
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        """Prepare to run the SFTP server. Reject any other subsystem."""
        layer = self._body.layer
        self._argv = [layer.surroundings.base_python, "-I", "-S", layer.program("sftp.py")]
        return subsystem == "sftp"

    def session_started(self) -> None:
        """Start the process once the client's request has been accepted."""
        if self._channel is not None:
            for name, value in self._channel.get_environment().items():
                if name.startswith(_PERMITTED_VARIABLES):
                    self._environment[name] = value
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Forward bytes to the process, or buffer them until the process starts. Drop them once its input is closed."""
        del datatype
        if not self._started:
            # The process is not running yet. Pausing earlier has no effect: asyncssh resumes after `session_started`.
            self._early.append(data)
            if self._channel is not None:
                self._channel.pause_reading()
        elif self._input is not None and not self._input.is_closing():
            self._input.write(data)

    def eof_received(self) -> bool:
        """Close the process's input. On a terminal, do nothing, because programs expect Ctrl-D instead."""
        self._input_over = True
        if self._input is not None and not self._terminal:
            self._input.close()
        return True

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """Resize the terminal. The kernel notifies its foreground programs."""
        self._size = (width, height, pixwidth, pixheight)
        self._resize()

    def signal_received(self, signal: str) -> None:
        """Forward a signal; unknown names are ignored, as in OpenSSH."""
        number = _SIGNALS.get(signal)
        if number is not None and self._process is not None and self._process.returncode is None:
            self._body.send_signal(self._process.pid, number)

    def pause_writing(self) -> None:
        """Stop reading from the process while the client cannot keep up."""
        self._drained.clear()
        for output in self._outputs:
            if not output.is_closing():
                output.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading once the client has caught up."""
        self._drained.set()
        for output in self._outputs:
            if not output.is_closing():
                output.resume_reading()

    async def _run(self) -> None:
        try:
            await self._start()
        except OSError as err:
            self._exit(_NOT_STARTED, f"cannot start the process: {err.strerror}\n")
            return
        self._forward_early_input()
        assert self._process is not None  # noqa: S101 - started above
        code = await self._process.wait()
        if self._terminal:
            # Wait only briefly: a background program may keep the terminal open forever, and usually no output is left.
            await asyncio.wait({asyncio.ensure_future(self._ended.wait())}, timeout=_DRAIN_S)
        else:
            await self._ended.wait()
        # Clients close a channel once they receive the exit status, and unsent data would be lost.
        await self._drained.wait()
        self._exit(code)

    def _forward_early_input(self) -> None:
        """Forward the input, and the end of input, that arrived before the process started."""
        self._started = True
        if self._channel is None:
            self._close_pipes()
            return
        if self._early and self._input is not None:
            self._input.write(b"".join(self._early))
        self._early = []
        self._channel.resume_reading()
        if self._input_over:
            self.eof_received()

    def _exit(self, code: int, message: str = "") -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            if message:
                channel.write_stderr(message.encode())
            if code < 0:
                channel.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
            else:
                channel.exit(code)
        self._close_pipes()

    async def _start(self) -> None:
        if self._terminal:
            await self._start_on_terminal()
        else:
            await self._start_on_pipes()

    async def _start_on_pipes(self) -> None:
        inputs, outputs, errors = os.pipe(), os.pipe(), os.pipe()
        theirs, ours = (inputs[0], outputs[1], errors[1]), (inputs[1], outputs[0], errors[0])
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._body.command(self._argv, cwd=self._home, terminal=False),
                stdin=theirs[0], stdout=theirs[1], stderr=theirs[2],
                env=self._environment, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        await self._connect(*ours)

    async def _start_on_terminal(self) -> None:
        self._master, slave = self._body.open_terminal()
        self._resize()
        self._environment["TERM"] = self._terminal
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._body.command(self._argv, cwd=self._home, terminal=True),
                stdin=slave, stdout=slave, stderr=slave, env=self._environment, start_new_session=True,
                preexec_fn=self._body.take_terminal,
            )  # fmt: skip
        except BaseException:
            os.close(self._master)
            self._master = -1
            raise
        finally:
            os.close(slave)
        await self._connect(os.dup(self._master), self._master, None)

    async def _connect(self, to_process: int, from_process: int, errors: int | None) -> None:
        loop = asyncio.get_running_loop()
        sources: list[tuple[int, int | None]] = [(from_process, None)]
        if errors is not None:
            sources.append((errors, asyncssh.EXTENDED_DATA_STDERR))
        self._open_outputs = len(sources)
        for descriptor, kind in sources:
            reader = _Outlet(self, kind)
            transport, _ = await loop.connect_read_pipe(partial(_same, reader), _file(descriptor, "rb"))
            self._outputs.append(transport)
        writer = _Inlet(self)
        self._input, _ = await loop.connect_write_pipe(partial(_same, writer), _file(to_process, "wb"))

    def _resize(self) -> None:
        if self._master >= 0:
            width, height, pixels_x, pixels_y = self._size
            try:
                fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, pixels_x, pixels_y))
            except OSError as err:
                if err.errno not in (errno.EBADF, errno.ENOTTY, errno.EIO):
                    raise

    def _close_pipes(self) -> None:
        self._master = -1
        if self._input is not None and (not self._input.is_closing() or self._input.get_write_buffer_size()):
            # Not `close`: data that the process has not read would keep the pipe open forever.
            self._input.abort()
        for output in self._outputs:
            output.close()

    # Callbacks of the pipes.

    def output_received(self, data: bytes, kind: int | None) -> None:
        """Forward bytes from the process to the client."""
        if self._channel is not None:
            self._channel.write(data, kind)

    def output_ended(self) -> None:
        """Record that one output stream ended, because every process has closed it."""
        self._open_outputs -= 1
        if self._open_outputs <= 0:
            self._ended.set()

    def input_ended(self) -> None:
        """Stop writing when the input pipe closes, whether this session or the process closed it."""
        self._input = None

    def input_full(self, *, full: bool) -> None:
        """Stop reading from the client while the process cannot keep up with its input, then resume reading."""
        if self._channel is not None:
            if full:
                self._channel.pause_reading()
            else:
                # Resume later, because the channel may deliver the end of input as well, and closing a pipe inside this
                # call discards the data passed to the pipe in the same call.
                asyncio.get_running_loop().call_soon(self._channel.resume_reading)


class _Outlet(asyncio.Protocol):
    def __init__(self, session: NodeSession, kind: int | None) -> None:
        self._session = session
        self._kind = kind

    def data_received(self, data: bytes) -> None:
        self._session.output_received(data, self._kind)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._session.output_ended()


class _Inlet(asyncio.BaseProtocol):
    def __init__(self, session: NodeSession) -> None:
        self._session = session

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._session.input_ended()

    def pause_writing(self) -> None:
        self._session.input_full(full=True)

    def resume_writing(self) -> None:
        self._session.input_full(full=False)


_SIGNALS = {name.removeprefix("SIG"): number for name, number in signal.Signals.__members__.items()}


def _same(value: T) -> T:
    return value


def _file(descriptor: int, mode: str) -> BinaryIO:
    return cast("BinaryIO", os.fdopen(descriptor, mode, buffering=0))
