"""Run the Pulumi CLI in a separate session with an explicit environment, and record its process ID while it runs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulumi.automation import CommandResult
from pulumi.automation import PulumiCommand as SdkCommand
from pulumi.automation.errors import create_command_error
from semver import VersionInfo

from cloudgpu import files
from cloudgpu.clock import Cancelled, Clock, require_not_cancelled
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.engine.plugin.provider import PARENT_COMMAND_VARIABLE
from cloudgpu.errors import BusyError, CloudError, UsageError
from cloudgpu.processes import process_start, this_system
from cloudgpu.text import command, printable

OnOutput = Callable[[str], Any]

_OLDEST: Final = VersionInfo(3, 200, 0)
_STOPPED_WITHIN_S: Final = 180.0
"""Time in seconds in which an interrupted CLI can finish and record its operations."""
_KILLED_WITHIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.2
_NON_INTERACTIVE: Final = "--non-interactive"
_NOTED: Final = r"""
note=$1 system=$2 host=$3
shift 3
pick() { shift 19; start=$1; }
start=alive
if [ -r "/proc/$$/stat" ]; then
  read -r stat <"/proc/$$/stat"
  pick ${stat##*") "}
fi
record='{"pid": %d, "start": "%s", "system": "%s", "host": "%s"}'
printf "$record" "$$" "$start" "$system" "$host" >"$note.$$" && mv "$note.$$" "$note" || exit 73
exec "$@"
"""
"""Shell script that records its process ID and then executes the CLI with the same ID. The parent process could be
killed before it records the ID itself."""


class PulumiCommand(SdkCommand):
    """The CLI for one stack. Unlike the SDK's class, this class passes only the given environment variables.

    Args:
        command: The executable.
        environ: The complete environment of the CLI.
        note: File that contains the CLI's process ID while it runs, so that the next command can stop an abandoned CLI.
    """

    def __init__(self, command: Path, environ: Mapping[str, str], note: Path) -> None:
        # Do not call the SDK's constructor, which reads the CLI's version in the caller's environment.
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
        """Run the CLI and wait for it."""
        return self._run(args, cwd, additional_env, (on_output, on_error))

    def feed(self, args: list[str], cwd: str, text: str) -> CommandResult:
        """Run the CLI with `text` on standard input, for secrets that must not appear in the arguments."""
        return self._run(args, cwd, {}, (None, None), text)

    def _run(
        self,
        args: list[str],
        cwd: str,
        extra_environ: Mapping[str, str],
        listeners: tuple[OnOutput | None, OnOutput | None],
        text: str = "",
    ) -> CommandResult:
        # If an earlier CLI was killed, keep the note, because the next command must remove that CLI's lock.
        killed_before = was_command_killed(self._note)
        prefix = [] if _NON_INTERACTIVE in args else [_NON_INTERACTIVE]
        process = subprocess.Popen(
            ["/bin/sh", "-c", _NOTED, "sh", str(self._note), *_here(), self.command, *prefix, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={
                **self._environ,
                **extra_environ,
                PARENT_COMMAND_VARIABLE: f"{os.getpid()}:{process_start(os.getpid())}",
            },
            encoding="utf-8",
            # We forward Ctrl-C once; a second signal would make the CLI abandon operations in progress.
            start_new_session=True,
        )
        try:
            out, err = _followed(process, listeners, text)
        finally:
            # Remove the note only if the CLI exited normally. A note that remains means that the CLI was killed.
            if process.returncode is not None and process.returncode >= 0 and not killed_before:
                self._note.unlink(missing_ok=True)
        result = CommandResult(out, err, process.returncode)
        if process.returncode != 0:
            raise create_command_error(result)
        return result

    def _version(self) -> VersionInfo:
        done = subprocess.run([self.command, "version"], env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode < 0:
            # Do not raise the error for a missing CLI, after which `down` would continue without the CLI.
            message = f"the Pulumi CLI {self.command} was killed by signal {-done.returncode}"
            raise CloudError(message, code="PulumiKilled", hint="run the same command again")
        output = done.stdout.strip()
        try:
            version = VersionInfo.parse(output.removeprefix("v"))
        except ValueError as err:
            message = f"{self.command} does not report a valid version: {output[:80]!r}"
            raise UsageError(message, hint="reinstall the Pulumi CLI") from err
        if version < _OLDEST:
            message = f"the Pulumi CLI {self.command} has version {version}, but {_OLDEST} or later is required"
            raise UsageError(message, hint="update the Pulumi CLI: https://www.pulumi.com/docs/install")
        return version


def was_command_killed(note: Path) -> bool:
    """Return True if a command was killed while its CLI was running."""
    return note.exists()


def stop_abandoned_cli(note: Path, clock: Clock, on_wait: Callable[[int], None]) -> None:
    """Stop the CLI left by a killed command if it is still running. Interrupt it first, so that it saves its state.

    Args:
        note: The note that the killed command left.
        clock: Clock used for waiting.
        on_wait: Called once with the process ID if the CLI is still running.
    """
    recorded = _recorded_process(note)
    if recorded is not None and _ended_with_its_system(recorded, note):
        return
    # Even a truncated note proves that a CLI ran in this directory, so search for its process.
    process = (recorded.pid, recorded.start) if recorded is not None else find_cli_process(note.parent)
    if process is None:
        return
    pid, start = process
    if process_start(pid) != start:
        kill_cli_children(pid)
        return
    on_wait(pid)
    for number, limit_s in ((signal.SIGINT, _STOPPED_WITHIN_S), (signal.SIGKILL, _KILLED_WITHIN_S)):
        _signal(pid, number)
        if _exited(process, clock, limit_s):
            kill_cli_children(pid)
            return
    message = f"an orphaned Pulumi process (PID {pid}) cannot be stopped"
    raise BusyError(message, hint=f"run `{command('kill', '-9', str(pid))}`, then run the same command again")


def _followed(
    process: "subprocess.Popen[str]", listeners: tuple[OnOutput | None, OnOutput | None], text: str
) -> tuple[str, str]:
    """Write the input and return all output. The first Ctrl-C interrupts the CLI, and the second kills it."""
    streams = (process.stdout, process.stderr)
    chunks: tuple[list[str], list[str]] = ([], [])
    readers = [
        threading.Thread(target=_read, args=(stream, listener, lines), daemon=True)
        for stream, listener, lines in zip(streams, listeners, chunks, strict=True)
    ]
    interrupt: KeyboardInterrupt | Cancelled | None = None
    # Make these calls inside the loop, because Ctrl-C may arrive before or between them.
    pending_starts: list[Callable[[], None]] = [
        *(reader.start for reader in readers),
        lambda: _feed(process, text),
    ]
    while process.returncode is None:
        try:
            while pending_starts:
                pending_starts.pop(0)()
            _wait(process, interrupted=interrupt is not None)
        except (KeyboardInterrupt, Cancelled) as err:
            _signal(process.pid, signal.SIGKILL if interrupt else signal.SIGINT)
            interrupt = err
    if process.returncode < 0:
        # The CLI's child processes keep the pipes open, and the readers would wait for them.
        kill_cli_children(process.pid)
    for reader in readers:
        if reader.ident is not None:
            reader.join()
    _close(process)
    if interrupt is not None:
        raise interrupt
    return "\n".join(chunks[0]), "\n".join(chunks[1])


def _wait(process: "subprocess.Popen[str]", *, interrupted: bool) -> None:
    """Wait for the CLI. Outside the main thread, a signal of the user ends the wait only if it is checked for."""
    while process.returncode is None:
        if not interrupted:
            require_not_cancelled()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY_S)


def _feed(process: "subprocess.Popen[str]", text: str) -> None:
    if process.stdin is not None:
        # if the CLI exits before it reads the input, its exit code is reported
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(text)
            process.stdin.close()


def _close(process: "subprocess.Popen[str]") -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _read(stream: Any, listener: OnOutput | None, lines: list[str]) -> None:  # noqa: ANN401
    with stream:
        for line in stream:
            stripped = line.rstrip()
            if listener is not None:
                listener(stripped)
            lines.append(stripped)


@dataclass(frozen=True)
class RecordedProcess:
    """A CLI as its note describes it. Older versions recorded neither the system nor the host."""

    pid: int
    start: str
    system: str = ""
    host: str = ""


def _recorded_process(note: Path) -> RecordedProcess | None:
    """Return the recorded process, or None if the note is missing or unreadable."""
    try:
        return decode_as(RecordedProcess, files.read_json(note, files.SETTINGS_BYTES))
    except (OSError, *MALFORMED):
        return None


def _here() -> tuple[str, str]:
    """Return this system and its name, for a note."""
    return str(this_system()), json.dumps(socket.gethostname())[1:-1]


def _ended_with_its_system(recorded: RecordedProcess, note: Path) -> bool:
    """Return True if the recorded CLI ran before this machine's last boot."""
    system = this_system()
    if system.shares_processes(recorded.system):
        return False
    if system.has_rebooted_since(recorded.system):
        return True
    where = f"{printable(recorded.host)} (process {recorded.pid})"
    message = f"the Pulumi CLI was started on another machine or in another container, {where}"
    hint = f"run the same command there; or, if that process has exited, delete its note: {command('rm', str(note))}"
    raise BusyError(message, hint=hint)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _exited(process: tuple[int, str], clock: Clock, limit_s: float) -> bool:
    deadline = clock.monotonic() + limit_s
    while process_start(process[0]) == process[1]:
        if clock.monotonic() > deadline:
            return False
        clock.sleep(_LOOK_EVERY_S)
    return True


_SESSION = 3
"""Index among the fields of /proc/PID/stat that follow the program's name: state, parent, group, session."""


def kill_cli_children(leader: int) -> None:
    """Kill the children of a CLI that has exited. Its language host may take five minutes to notice the exit.

    The session identifies the children: the kernel does not reuse a session ID while a process of the session is alive.
    On systems without `/proc`, nothing is killed, and the children exit later.
    """
    if process_start(leader):
        return
    for process in _processes():
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            ours = PARENT_COMMAND_VARIABLE.encode() in (process / "environ").read_bytes()
        except OSError:
            continue  # the process has exited, or belongs to another user
        if ours and int(fields[_SESSION]) == leader:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)


def find_cli_process(folder: Path) -> tuple[int, str] | None:
    """Return the process ID and start time of a CLI whose working directory is `folder`, or None if there is none."""
    for process in _processes():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            works_here = (process / "cwd").samefile(folder)
        except OSError:
            continue
        if works_here and any(Path(os.fsdecode(word)).name == "pulumi" for word in words[:2]):
            return int(process.name), process_start(int(process.name))
    return None


def _processes() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")
