"""Reading what this agent did not write: other programs' answers, other nodes' messages, files that may be damaged."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any, Callable, Iterator

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What code that takes a document of the wrong shape apart can raise."""
LARGEST = 1 << 62


def parsed(text: bytes | str) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Return the value of a JSON document.

    Raises:
        ValueError: It is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parsed_object(text: bytes | str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: It is something else.
    """
    return mapping(parsed(text))


def mapping(value: object) -> dict[str, Any]:
    """Return a value that has to be a JSON object.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one kind for all that is malformed
    return value


def number(value: object, largest: float = LARGEST) -> float:
    """Return a value that has to be a finite number, 0 or more.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        raise ValueError("not a number in the range that makes sense")
    return value


def whole(value: object, largest: int = LARGEST) -> int:
    """Return a value that has to be a whole number, 0 or more.

    Raises:
        ValueError: It is something else.
    """
    found = number(value, largest)
    if not isinstance(found, int):
        raise ValueError("not a whole number")  # noqa: TRY004 - one kind for all that is malformed
    return found


def text(value: object) -> str:
    """Return a value that has to be text.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004 - one kind for all that is malformed
    return value


@contextmanager
def malformed_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """Replace what a document of the wrong shape makes the block raise; `error` gets one line about what is wrong.

    Raises:
        Exception: What `error` returns.
    """
    try:
        yield
    except MALFORMED as malformed:
        # Only the kind: the text may repeat what was read, and with it a secret.
        why = f"it lacks {malformed}" if isinstance(malformed, LookupError) else type(malformed).__name__
        raise error(why) from None
