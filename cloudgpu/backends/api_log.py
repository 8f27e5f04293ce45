"""The debug log of AWS calls and their request IDs, for AWS support. Parameters, which may be secret, are omitted."""

import json
import threading
from pathlib import Path
from typing import Protocol

from cloudgpu import files
from cloudgpu.clock import Clock
from cloudgpu.paths import unwritable_error


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
