"""Running the CLI: in a session of its own, with exactly the environment that it is given, noted while it runs."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pulumi.automation import CommandResult, PulumiCommand
from pulumi.automation.errors import create_command_error
from semver import VersionInfo

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.decoding import MALFORMED, decoded
from cloudgpu.engine.plugin.server import ENDS_WITH
from cloudgpu.engine.processes import process_start
from cloudgpu.engine.pulumi_cli.process_sessions import cli_in, end_session
from cloudgpu.errors import BusyError, CloudError, UsageError
from cloudgpu.text import command

OnOutput = Callable[[str], Any]

_OLDEST: Final = VersionInfo(3, 200, 0)
_STOPPED_WITHIN_S: Final = 180.0
"""How long an abandoned CLI may take to record what it has under way, seconds."""
_KILLED_WITHIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.2
_NON_INTERACTIVE: Final = "--non-interactive"
_NOTED: Final = r"""
note=$1
shift
pick() { shift 19; start=$1; }
start=alive
if [ -r "/proc/$$/stat" ]; then
  read -r stat <"/proc/$$/stat"
  pick ${stat##*") "}
fi
printf '{"pid": %d, "start": "%s"}' "$$" "$start" >"$note.$$" && mv "$note.$$" "$note" || exit 73
exec "$@"
"""
"""The process that becomes the CLI notes itself first: whoever starts it may be killed before it can write anything."""


class Command(PulumiCommand):
    """The CLI for one stack. Unlike the SDK's own, it hands on no variable that it was not given.

    Args:
        command: The executable.
        environ: All of the CLI's environment.
        note: Holds the process id while the CLI runs, so that whoever comes after a killed command can end it.
    """

    def __init__(self, command: Path, environ: Mapping[str, str], note: Path) -> None:
        # The SDK's constructor asks for the version in the caller's own environment.
        self.command = str(command)
        self._environ = dict(environ)
        self._note = note
        self.version = self._version()

    def run(
        self,
        args: list[str],
        cwd: str,
        additional_env: Mapping[str, str],
        on_output: OnOutput | None = None,
        on_error: OnOutput | None = None,
    ) -> CommandResult:
        """Run it to its end.

        Raises:
            CommandError: It ended badly.
            KeyboardInterrupt: It was interrupted; what it had under way has ended and is recorded.
        """
        return self._run(args, cwd, additional_env, (on_output, on_error))

    def feed(self, args: list[str], cwd: str, text: str) -> CommandResult:
        """Run it with `text` as its standard input: what is secret must not stand among its arguments.

        Raises:
            CommandError: It ended badly.
        """
        return self._run(args, cwd, {}, (None, None), text)

    def _run(
        self,
        args: list[str],
        cwd: str,
        more: Mapping[str, str],
        listeners: tuple[OnOutput | None, OnOutput | None],
        text: str = "",
    ) -> CommandResult:
        # Left by a CLI that was killed under this very command: its lock is still to be taken away.
        killed_before = abandoned(self._note)
        front = [] if _NON_INTERACTIVE in args else [_NON_INTERACTIVE]
        process = subprocess.Popen(
            ["/bin/sh", "-c", _NOTED, "sh", str(self._note), self.command, *front, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={**self._environ, **more, ENDS_WITH: f"{os.getpid()}:{process_start(os.getpid())}"},
            encoding="utf-8",
            # Ctrl-C is handed on once, by us: twice, and the CLI drops what it has under way.
            start_new_session=True,
        )
        try:
            out, err = _followed(process, listeners, text)
        finally:
            # Only when it came to its own end: a note that stays behind tells of a CLI that recorded nothing more.
            if process.returncode is not None and process.returncode >= 0 and not killed_before:
                self._note.unlink(missing_ok=True)
        result = CommandResult(out, err, process.returncode)
        if process.returncode != 0:
            raise create_command_error(result)
        return result

    def _version(self) -> VersionInfo:
        done = subprocess.run([self.command, "version"], env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode < 0:
            # Not the same as a CLI that is missing: whoever ends a cluster goes on without one of those.
            message = f"the Pulumi CLI {self.command} was killed by signal {-done.returncode}"
            raise CloudError(message, code="PulumiKilled", hint="run the same command again")
        said = done.stdout.strip()
        try:
            found = VersionInfo.parse(said.removeprefix("v"))
        except ValueError as err:
            message = f"{self.command} does not tell its version: {said[:80]!r}"
            raise UsageError(message, hint="install the Pulumi CLI again") from err
        if found < _OLDEST:
            message = f"the Pulumi CLI {self.command} is {found}; at least {_OLDEST} is needed"
            raise UsageError(message, hint="update it: https://www.pulumi.com/docs/install")
        return found


def abandoned(note: Path) -> bool:
    """Whether a command was killed while its CLI ran."""
    return note.exists()


def end_abandoned(note: Path, clock: Clock, on_wait: Callable[[int], None]) -> None:
    """End the CLI of a killed command, if it still runs: first by asking, so that it records what it made.

    Args:
        note: The note that the killed command left.
        clock: What is waited on.
        on_wait: Gets its process id, once, when it has to be waited for.

    Raises:
        BusyError: It cannot be ended.
    """
    # A note that was torn still tells that there was a CLI, and in which folder it worked.
    noted = _noted(note) or cli_in(note.parent)
    if noted is None:
        return
    if process_start(noted[0]) != noted[1]:
        end_session(noted[0])
        return
    on_wait(noted[0])
    for number, limit_s in ((signal.SIGINT, _STOPPED_WITHIN_S), (signal.SIGKILL, _KILLED_WITHIN_S)):
        _signal(noted[0], number)
        if _gone(noted, clock, limit_s):
            end_session(noted[0])
            return
    message = f"an abandoned Pulumi CLI (process {noted[0]}) cannot be ended"
    raise BusyError(message, hint=f"{command('kill', '-9', str(noted[0]))}, then run the same command again")


def _followed(
    process: "subprocess.Popen[str]", listeners: tuple[OnOutput | None, OnOutput | None], text: str
) -> tuple[str, str]:
    """Feed it, and read it to its end; the first interrupt asks it to stop, the second one ends it."""
    streams = (process.stdout, process.stderr)
    chunks: tuple[list[str], list[str]] = ([], [])
    readers = [
        threading.Thread(target=_read, args=(stream, listener, found), daemon=True)
        for stream, listener, found in zip(streams, listeners, chunks, strict=True)
    ]
    interrupt: KeyboardInterrupt | None = None
    # Ctrl-C may come before the first of these: none of them stands outside the loop.
    begin: list[Callable[[], None]] = [*(reader.start for reader in readers), lambda: _give(process, text)]
    while process.returncode is None:
        try:
            while begin:
                begin.pop(0)()
            process.wait()
        except KeyboardInterrupt as err:
            _signal(process.pid, signal.SIGKILL if interrupt else signal.SIGINT)
            interrupt = err
    if process.returncode < 0:
        # What it started holds the other ends of the pipes, and would be read for as long as it lives.
        end_session(process.pid)
    for reader in readers:
        if reader.ident is not None:
            reader.join()
    _close(process)
    if interrupt is not None:
        raise interrupt
    return "\n".join(chunks[0]), "\n".join(chunks[1])


def _give(process: "subprocess.Popen[str]", text: str) -> None:
    if process.stdin is not None:
        # should it end first, its exit code tells why
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(text)
            process.stdin.close()


def _close(process: "subprocess.Popen[str]") -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _read(stream: Any, listener: OnOutput | None, found: list[str]) -> None:  # noqa: ANN401
    with stream:
        for line in stream:
            stripped = line.rstrip()
            if listener is not None:
                listener(stripped)
            found.append(stripped)


def _noted(note: Path) -> tuple[int, str] | None:
    """Process id and start; None where nothing is noted, or the note was torn."""
    try:
        found = files.read_json(note, files.SETTINGS_BYTES)
        return decoded(int, found["pid"]), decoded(str, found["start"])
    except (OSError, *MALFORMED):
        return None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _gone(noted: tuple[int, str], clock: Clock, limit_s: float) -> bool:
    deadline = clock.monotonic() + limit_s
    while process_start(noted[0]) == noted[1]:
        if clock.monotonic() > deadline:
            return False
        clock.sleep(_LOOK_EVERY_S)
    return True
