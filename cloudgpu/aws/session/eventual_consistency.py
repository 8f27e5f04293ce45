"""Retry calls that fail because of eventual consistency.

AWS may report that a newly created resource does not exist. A call that fails for this reason is retried if this
process created the resource less than half a minute ago and has not deleted it. A terminated instance still counts as
created.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

YOUNG_S = 30.0
_FIRST_S = 0.25
_LONGEST_S = 3.0
_ID = re.compile(r"(?:[a-z]{1,12}-[0-9a-f]{8,17}|fleet-[0-9a-f-]{30,40})\Z")
_CREATING = ("Create", "Run", "Allocate", "Import", "Copy", "Register")
_DELETING = ("Delete", "Release", "Deregister")
_NOT_FOUND = re.compile(r"NotFound$|\.NotFound\b")

Now = Callable[[], float]


class NewResources:
    """Record of recently created resources, with the retry handler that botocore calls after every response."""

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
            self._note(operation.name, requested_ids, content)
        elif _NOT_FOUND.search(code) and self._is_young(requested_ids):
            return float(min(_FIRST_S * 2 ** (attempts - 1), _LONGEST_S))
        return None

    def _note(self, operation: str, requested_ids: set[str], content: Mapping[str, Any]) -> None:
        with self._lock:
            if operation.startswith(_CREATING):
                self._made |= dict.fromkeys(set(_ids(content)) - requested_ids, self._now())
            elif operation.startswith(_DELETING):
                for resource_id in requested_ids:
                    self._made.pop(resource_id, None)

    def _is_young(self, ids: set[str]) -> bool:
        with self._lock:
            return any(self._now() - self._made.get(resource_id, float("-inf")) < YOUNG_S for resource_id in ids)


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
