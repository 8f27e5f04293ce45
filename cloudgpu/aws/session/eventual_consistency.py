"""Retry calls that fail because of eventual consistency.

AWS may answer "not found" for a resource that was just created. That answer is believed only if the ID is older than
half a minute, or was deleted by this process.
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
_MAKING = ("Create", "Run", "Allocate", "Import", "Copy", "Register")
_ENDING = ("Delete", "Release", "Deregister")
_NOT_FOUND = re.compile(r"NotFound$|\.NotFound\b")

Now = Callable[[], float]


class Newborn:
    """Resources that a client just created. botocore asks after every response whether to retry the call."""

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
        """Return the seconds to wait before retrying the call, or None to accept the response."""
        if response is None:
            return None
        named, answer = set(_ids(request_dict.get("body"))), response[1]
        code = str(answer.get("Error", {}).get("Code", ""))
        if not code:
            self._note(operation.name, named, answer)
        elif _NOT_FOUND.search(code) and self._is_young(named):
            return float(min(_FIRST_S * 2 ** (attempts - 1), _LONGEST_S))
        return None

    def _note(self, name: str, named: set[str], answer: Mapping[str, Any]) -> None:
        with self._lock:
            if name.startswith(_MAKING):
                self._made |= dict.fromkeys(set(_ids(answer)) - named, self._now())
            elif name.startswith(_ENDING):
                for resource_id in named:
                    self._made.pop(resource_id, None)

    def _is_young(self, named: set[str]) -> bool:
        with self._lock:
            return any(self._now() - self._made.get(resource_id, float("-inf")) < YOUNG_S for resource_id in named)


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
