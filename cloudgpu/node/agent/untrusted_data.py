"""Parse untrusted data: output of other programs, messages of other nodes, files that may be corrupt; and errors."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any, Callable, Iterator

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that a malformed document can cause."""
LARGEST = 1 << 62


def parse_json(text: bytes | str) -> Any:  # noqa: ANN401 - JSON of unknown shape
    """Return the value of a JSON document."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json_object(text: bytes | str) -> dict[str, Any]:
    """Parse a JSON object."""
    return require_object(parse_json(text))


def require_object(value: object) -> dict[str, Any]:
    """Return the value if it is a JSON object."""
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one exception type for all malformed data
    return value


def require_number(value: object, largest: float = LARGEST) -> float:
    """Return the value if it is a number from 0 to `largest`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        raise ValueError("not a number in the valid range")
    return value


def require_integer(value: object, largest: int = LARGEST) -> int:
    """Return the value if it is an integer from 0 to `largest`."""
    integer = require_number(value, largest)
    if not isinstance(integer, int):
        raise ValueError("not a whole number")  # noqa: TRY004 - one exception type for all malformed data
    return integer


def text(value: object) -> str:
    """Return the value if it is a string."""
    if not isinstance(value, str):
        raise ValueError("not text")  # noqa: TRY004 - one exception type for all malformed data
    return value


@contextmanager
def raise_malformed_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """Convert exceptions that a malformed document causes in the block. `error` receives a one-line reason."""
    try:
        yield
    except MALFORMED as malformed:
        # Show a missing key or the exception's type, but not its text, which may repeat a secret from the input.
        why = f"missing {malformed}" if isinstance(malformed, KeyError) else type(malformed).__name__
        raise error(why) from None


class AgentError(Exception):
    """An expected failure. `hint` is the next step for the user, and `code` identifies the failure for programs."""

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class DamagedError(AgentError, ValueError):
    """One of the agent's files is corrupt."""
