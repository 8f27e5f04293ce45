"""The node host process: `python -m cloudgpu.rehearsal.nodes.host --directory DIR --home DIR --envs DIR`.

The command exits once the detached child process listens, or immediately if a host for the same directory is
already running.

It saves the timer clock's offset and the role's credentials for the next process.
"""

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.decoding import decode_as
from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.layout import DocumentFormat, shift_within_limits
from cloudgpu.rehearsal.nodes import addresses, namespaces, record, shared_storage, visible_paths
from cloudgpu.rehearsal.nodes.control import ControlServer
from cloudgpu.rehearsal.nodes.hosted_nodes import HostedNodes
from cloudgpu.rehearsal.nodes.values import RoleCredentials, credentials_to_json

_FORMAT: Final = DocumentFormat("state of the node host")
_LOG = logging.getLogger("cloudgpu.rehearsal.nodes.host")
_CHECK_INTERVAL_S = 5.0
_IDLE_S = 1800.0
_LOG_LIMIT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class HostState:
    """The stored state. `credentials` is None until the rehearsal server has sent the role's credentials."""

    offset_s: float = 0.0
    credentials: RoleCredentials | None = None


def load_state(path: Path) -> HostState:
    """Read the state. A missing or invalid value is replaced by its default."""
    try:
        values = _FORMAT.read(path)
    except (OSError, ValueError):
        return HostState()
    return HostState(_offset(values, path), _credentials(values, path))


def save_state(path: Path, state: HostState) -> None:
    """Replace the stored state."""
    credentials = credentials_to_json(state.credentials) if state.credentials else None
    record.write_private(path, _FORMAT.encode({"offset_s": state.offset_s, "credentials": credentials}))


def _offset(values: dict[str, object], path: Path) -> float:
    offset_s = values.get("offset_s") or 0.0
    if isinstance(offset_s, int | float) and shift_within_limits(offset_s):
        return float(offset_s)
    _LOG.warning("%s: %r is not a valid clock offset; using the machine's clock", path, offset_s)
    return 0.0


def _credentials(values: dict[str, object], path: Path) -> RoleCredentials | None:
    stored = values.get("credentials")
    if stored is None:
        return None
    try:
        return decode_as(RoleCredentials, stored)
    except ValueError as err:
        _LOG.warning("%s: cannot read the role credentials: %s", path, err)
        return None  # the rehearsal server sends the credentials again


@dataclass(frozen=True)
class HostOptions:
    """The command-line options of the node host."""

    directory: Path
    home: Path
    envs: Path
    isolation: str

    @property
    def state(self) -> Path:
        """File that contains the state for the next host process."""
        return self.directory / "host.json"


def main(arguments: list[str]) -> int:
    """Start the host in the background unless a host is already running. Return 0 if a host is running, else 1."""
    settings = _settings(arguments)
    try:
        settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = files.open_descriptor(settings.directory / "host.lock", os.O_RDWR | os.O_CREAT)
    except OSError as err:
        sys.stderr.write(f"cannot write to {settings.directory}: {err.strerror}\n")
        return 1
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    ready, notify = os.pipe()
    if os.fork() != 0:
        os.close(notify)
        # If the child exits early, no data is received. The child has written the reason to standard error, or to the
        # log if it had already detached.
        return 0 if os.read(ready, 1) else 1
    os.close(ready)
    os.setsid()
    return _child(settings, lock, notify)


def _child(settings: HostOptions, lock: int, notify: int) -> int:
    try:
        asyncio.run(_serve(settings, lock, notify))
    except (CloudGpuError, OSError) as err:
        _LOG.exception("the node host failed")
        sys.stderr.write(f"{err}\n")  # the caller shows the last line
        return 1
    return 0


def _settings(arguments: list[str]) -> HostOptions:
    parser = argparse.ArgumentParser(description="Run the nodes of a rehearsal cloud.")
    for name in ("--directory", "--home", "--envs"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--isolation", choices=("auto", "cage", "plain"), default="auto")
    return HostOptions(**vars(parser.parse_args(arguments)))


async def _serve(settings: HostOptions, lock: int, notify: int) -> None:
    _watch_children_by_descriptor()
    isolation = _isolation(settings)
    seen = visible_paths.find_visible_paths(
        settings.home, settings.envs, os.environ, shared_storage.create_shared_folder(settings.directory)
    )
    # Check for records of a newer version before detaching, while the caller can still read the error.
    record.refuse_newer(settings.directory / "instances")
    stored = load_state(settings.state)
    nodes = HostedNodes(settings.directory, seen, isolation, stored.offset_s)
    nodes.credentials = stored.credentials
    control = ControlServer(nodes, lambda: save_state(settings.state, HostState(nodes.offset_s, nodes.credentials)))
    bound = addresses.bind(settings.directory / "host.sock")
    _detach(settings.directory / "host.log")
    _LOG.info("host %s with isolation %s", os.getpid(), isolation)
    await nodes.adopt()
    server = await control.listen(bound)
    os.write(notify, b"1")
    os.close(notify)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, control.over.set)
    await _until_shutdown(settings, control, nodes, lock)
    # Remove the socket first, so that new clients do not reach this host: they retry until they can start a new host.
    (settings.directory / "host.sock").unlink(missing_ok=True)
    server.close()
    await nodes.stop_all()
    _LOG.info("host %s exits", os.getpid())
    # The lock is released when the process exits, so that a client that waits for it sees no later write.
    control.release()


async def _until_shutdown(settings: HostOptions, control: ControlServer, nodes: HostedNodes, lock: int) -> None:
    """Wait until a client or signal requests a shutdown, the lock file is deleted, or the host is idle for too long."""
    while not control.over.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(control.over.wait(), _CHECK_INTERVAL_S)
        if not _still_locked(settings.directory / "host.lock", lock):
            _LOG.warning("%s was deleted", settings.directory)
            return
        nodes.trim_consoles()
        busy = nodes.any_running() or control.has_event_listener
        if not busy and time.monotonic() - control.last_asked_s > _IDLE_S:
            _LOG.info("idle, exiting")
            return


def _still_locked(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(lock))
    except OSError:
        return False


def _isolation(settings: HostOptions) -> str:
    """Return the isolation to use. If namespaces do not work, `auto` falls back to `plain`, but `cage` fails."""
    if settings.isolation == "plain":
        return "plain"
    probe = settings.directory / "probe"
    try:
        refusal = namespaces.unsupported_reason(probe)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    if refusal and settings.isolation == "cage":
        message = f"nodes cannot be isolated on this machine: {refusal}"
        raise CloudGpuError(message)
    if refusal:
        _LOG.warning("nodes are not isolated and share this machine's files: %s", refusal)
    return "plain" if refusal else "cage"


def _detach(log: Path) -> None:
    """Detach from the caller's terminal, directory and pipes. The caller waits until the pipes are closed."""
    if log.exists() and log.stat().st_size > _LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))
    output = files.open_descriptor(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(output)
    os.close(nothing)
    os.chdir("/")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.WARNING)


def _watch_children_by_descriptor() -> None:
    """Wait for child processes by pidfd. Python 3.11 uses a thread per child by default, later versions a pidfd."""
    if sys.version_info < (3, 12) and sys.platform == "linux":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.set_child_watcher(watcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
