"""Retry and poll with a time limit and an injected clock, and retry calls that fail due to eventual consistency.

AWS may report that a newly created resource does not exist. A call that fails for this reason is retried if this
process created the resource less than half a minute ago and has not deleted it. Terminating an instance does not
count as deleting it.

A fleet reports such an error in its response instead. `created_recently` tells whether the error names a new
resource.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError, ThrottledError

YOUNG_S = 30.0
_FIRST_S = 0.25
_LONGEST_LAG_S = 3.0
_ID = re.compile(r"(?:[a-z]{1,12}-[0-9a-f]{8,17}|fleet-[0-9a-f-]{30,40})\Z")
_CREATING = ("Create", "Run", "Allocate", "Import", "Copy", "Register")
_DELETING = ("Delete", "Release", "Deregister")
_NAMED: Mapping[str, str] = {
    "CreateKeyPair": "KeyName",
    "ImportKeyPair": "KeyName",
    "DeleteKeyPair": "KeyName",
    "CreatePlacementGroup": "GroupName",
    "DeletePlacementGroup": "GroupName",
    "CreateLaunchTemplate": "LaunchTemplateName",
    "DeleteLaunchTemplate": "LaunchTemplateName",
}
"""Operation -> parameter with the name by which launches and their errors refer to the resource."""
_RECENT_S = 120.0
"""Age in seconds up to which a launch may not find a resource: the minute of its retries, and the minute before."""
_NOT_FOUND = re.compile(r"NotFound$|\.NotFound\b")

Now = Callable[[], float]
T = TypeVar("T")
_LONGEST_S = 10.0
_GROWTH = 1.4


class NewResources:
    """The resources that were created recently, and the retry handler that botocore calls after every response."""

    def __init__(self, now: Now = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._made: dict[str, float] = {}

    def watch(self, client: Any) -> None:  # noqa: ANN401 - a boto3 client
        """Register the retry handler with a client."""
        client.meta.events.register("needs-retry", self.again)

    def again(
        self,
        response: tuple[Any, Mapping[str, Any]] | None,
        operation: Any,  # noqa: ANN401 - botocore's model
        attempts: int,
        request_dict: Mapping[str, Any],
        **_: object,
    ) -> float | None:
        """Return the number of seconds to wait before retrying the call, or None to accept the response."""
        if response is None:
            return None
        requested_ids, content = set(_ids(request_dict.get("body"))), response[1]
        code = str(content.get("Error", {}).get("Code", ""))
        if not code:
            self._note(operation.name, requested_ids, content, _name(operation.name, request_dict.get("body")))
        elif _NOT_FOUND.search(code) and self._is_young(requested_ids):
            return float(min(_FIRST_S * 2 ** (attempts - 1), _LONGEST_LAG_S))
        return None

    def created_recently(self, text: str) -> bool:
        """Return True if the text contains the ID or name of a resource created less than two minutes ago."""
        with self._lock:
            recent = [name for name, made in self._made.items() if self._now() - made < _RECENT_S]
        return any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in recent)

    def _note(self, operation: str, requested_ids: set[str], content: Mapping[str, Any], named: str) -> None:
        with self._lock:
            if operation.startswith(_CREATING):
                names = {*_ids(content), named} - requested_ids - {""}
                self._made |= dict.fromkeys(names, self._now())
            elif operation.startswith(_DELETING):
                for name in {*requested_ids, named}:
                    self._made.pop(name, None)

    def _is_young(self, ids: set[str]) -> bool:
        with self._lock:
            return any(self._now() - self._made.get(resource_id, float("-inf")) < YOUNG_S for resource_id in ids)


def _name(operation: str, body: Any) -> str:  # noqa: ANN401 - parameters of any shape
    """Return the name of the resource that the operation creates or deletes; empty for operations that use IDs."""
    return str(body.get(_NAMED[operation]) or "") if operation in _NAMED and isinstance(body, Mapping) else ""


def _ids(value: Any) -> Iterator[str]:  # noqa: ANN401 - parameters or responses of any shape
    if isinstance(value, str):
        if _ID.match(value):
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _ids(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _ids(item)


def retry(clock: Clock, call: Callable[[], T], *, when: Callable[[CloudGpuError], bool], total_s: float) -> T:
    """Make a call. For up to `total_s` seconds, retry after errors that `when` accepts, with increasing delays."""
    pause_s, deadline = _FIRST_S, clock.monotonic() + total_s
    while True:
        try:
            return call()
        except CloudGpuError as err:
            if not when(err) or clock.monotonic() + pause_s > deadline:
                raise
        clock.sleep(pause_s)
        pause_s = min(_LONGEST_S, pause_s * _GROWTH)


def poll(clock: Clock, look: Callable[[], T | None], *, what: str, total_s: float) -> T:
    """Poll with increasing delays until `look` returns a value."""
    pause_s, deadline = _FIRST_S, clock.monotonic() + total_s
    while True:
        value = look()
        if value is not None:
            return value
        if clock.monotonic() + pause_s > deadline:
            message = f"timed out after {total_s:.0f} s waiting for {what}"
            raise CloudError(message, code="TimedOut", hint="run the same command again")
        clock.sleep(pause_s)
        pause_s = min(_LONGEST_S, pause_s * _GROWTH)


def is_throttled(err: CloudGpuError) -> bool:
    """Return True if the call was throttled or the service failed temporarily, so that it can be repeated unchanged."""
    return isinstance(err, ThrottledError)
