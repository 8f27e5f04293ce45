"""What a command passes to a backend: the settings, the state home, the environment and the log of API calls."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.paths import unwritable_error

if TYPE_CHECKING:
    from cloudgpu.backends.base import Backend
    from cloudgpu.paths import Home
    from cloudgpu.settings import Settings
    from cloudgpu.state.record_store import RecordStore


class LoggedCall(Protocol):
    """A completed AWS API call."""

    @property
    def service(self) -> str:
        """AWS service, such as `ec2`."""

    @property
    def operation(self) -> str:
        """AWS operation, such as `CreateFleet`."""

    @property
    def request_id(self) -> str:
        """AWS request ID."""

    @property
    def http_status(self) -> int:
        """HTTP status code."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""


class ApiCallLog:
    """A log file of AWS API calls. The log is disabled if there is no path or after a write has failed.

    Logging must not raise an exception, because it runs before the caller receives AWS's response. Otherwise, a full
    disk could cause the response to a launch to be lost.
    """

    def __init__(self, path: Path | None, clock: Clock, *, required: bool = True) -> None:
        """Check that the log file can be written, so that an error occurs before the first AWS call.

        If `required` is False, an unwritable log is disabled, so that it does not block a deletion.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        if path is not None:
            try:
                files.open_for_appending(path).close()
            except OSError as err:
                if required:
                    raise unwritable_error(path, err) from err
                self._path = None

    def __call__(self, call: LoggedCall) -> None:
        """Append one call to the log."""
        path = self._path
        if path is None:
            return
        line = {
            "at": self._clock.now().isoformat(),
            "service": call.service,
            "operation": call.operation,
            "request_id": call.request_id,
            "status": call.http_status,
            "seconds": round(call.seconds, 3),
        }
        try:
            with self._lock, files.open_for_appending(path) as log:
                log.write(json.dumps(line).encode() + b"\n")
        except OSError:
            self._path = None


@dataclass(frozen=True)
class BackendEnvironment:
    """The settings, the state home and the environment of the command that opens a backend.

    Attributes:
        home: The state home, for reading. It may be missing or read-only.
        writable_home: Function that returns the state home and, if the command writes to it, first creates the
            directory and verifies that it is writable.
        environ: The caller's environment, for the programs that a backend starts.
        known_hosts: The files in which the caller's OpenSSH stores host keys.
        calls: The log of API calls, which is written only if `--debug` is set.
        buckets: Function that opens the backend for S3 access, for backends without object storage.
    """

    settings: Settings
    home: Home
    writable_home: Callable[[], Home]
    records: RecordStore
    clock: Clock
    environ: Mapping[str, str]
    known_hosts: tuple[Path, ...]
    calls: ApiCallLog
    buckets: Callable[[], Backend]


def user_known_hosts() -> tuple[Path, ...]:
    """Return the files in which the caller's OpenSSH stores host keys."""
    own, shared = Path.home() / ".ssh" / "known_hosts", Path("/etc/ssh/ssh_known_hosts")
    return (own, own.with_name("known_hosts2"), shared, shared.with_name("ssh_known_hosts2"))


def caller_environ() -> dict[str, str]:
    """Return a copy of the caller's environment."""
    return dict(os.environ)
