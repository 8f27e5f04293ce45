"""The debug log: one line per AWS call with its request ID, for AWS support. No parameters, so no secrets."""

import json
import threading
from pathlib import Path
from typing import Protocol

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.paths import unwritable


class LoggedCall(Protocol):
    """An AWS API call that returned."""

    @property
    def service(self) -> str:
        """AWS service: `ec2`."""

    @property
    def operation(self) -> str:
        """AWS operation: `CreateFleet`."""

    @property
    def request_id(self) -> str:
        """AWS request ID."""

    @property
    def http_status(self) -> int:
        """HTTP status: 200, 400 ..."""

    @property
    def seconds(self) -> float:
        """Duration in seconds."""


class ApiCallLog:
    """Append API calls to a file. Does nothing without a file, or once writing to it has failed.

    It runs between AWS's response and the caller, so an exception here would lose the response to a launch.
    """

    def __init__(self, path: Path | None, clock: Clock, *, required: bool = True) -> None:
        """Prove that the log can be written, while nothing is lost yet.

        With `required` false a log that cannot be written is none: no deletion waits for it.

        Raises:
            StateError: It is required and cannot be written.
        """
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        if path is not None:
            try:
                files.open_for_appending(path).close()
            except OSError as err:
                if required:
                    raise unwritable(path, err) from err
                self._path = None

    def __call__(self, call: LoggedCall) -> None:
        """Note one call."""
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
