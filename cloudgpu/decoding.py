"""Decode JSON from files, nodes and services into values of known types.

A file may be damaged, edited by hand or written by another version, and nothing that a node or service sends can be
trusted. Without validation at the point of reading, malformed data would fail later, elsewhere, with a traceback.
"""

import base64
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
from itertools import repeat
from typing import Annotated, Any, Final, TypeVar, cast

from cloudgpu import bounds
from cloudgpu.text import printable

MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that a malformed document can cause while it is decoded. Read errors (`OSError`) are not included."""
AnyFloat = Annotated[float, "may be infinite or not a number"]
"""A float computed by another program: the loss of a training run that diverged is NaN and must still be shown."""
_SHOWN: Final = 60
_MAX_DESCRIPTION: Final = 300
_WHOLE: Final = 1 << 63
T = TypeVar("T")
Reader = Callable[[Any], Any]
"""Function that decodes a JSON value as one type, and raises `_MismatchError` if it does not have that type."""


def decode_as(kind: type[T], value: object) -> T:
    """Decode a JSON value as a dataclass or any other annotated type.

    Unknown fields are ignored, because a newer version may have written them; missing fields take their defaults. Lists
    become tuples, unless the annotation is `list`, and times are converted to UTC. A field's annotation may be
    `Annotated[type, check]`: `check` receives the decoded value and raises ValueError if the value is invalid.
    """
    try:
        return cast("T", _reader(kind)(value))
    except _MismatchError as err:
        raise ValueError(str(err)) from None


class _MismatchError(ValueError):
    """A value that does not have the expected type. The functions that it passes through add where it is."""

    def __init__(self, why: str, *, separator: str = ": ", longest_path: int | None = _SHOWN) -> None:
        super().__init__(why)
        self.path: list[str] = []
        self._format = why, separator, longest_path

    def __str__(self) -> str:
        why, separator, longest_path = self._format
        path = ".".join(reversed(self.path))[:longest_path]
        return f"{path}{separator}{why}" if path else why


def _reader(kind: Any) -> Reader:  # noqa: ANN401 - any annotation
    """Return the function that decodes values of a type."""
    if kind is Any or kind is object:
        return lambda value: value
    if kind is AnyFloat:
        return _number
    if is_dataclass(kind):
        return _dataclass_reader(cast("type", kind))
    origin = typing.get_origin(kind)
    if origin is not None:
        return _composite_reader(origin, typing.get_args(kind))
    if kind not in _PLAIN:
        message = f"{kind} cannot be read from JSON"
        raise TypeError(message)
    return _PLAIN[kind]


def _composite_reader(origin: Any, inner: tuple[Any, ...]) -> Reader:  # noqa: ANN401 - any annotation
    if origin is Annotated:
        return _checked_reader(_reader(inner[0]), [check for check in inner[1:] if callable(check)])
    if origin in (typing.Union, types.UnionType):
        return _union_reader(inner)
    if origin is typing.Literal:
        return _literal_reader(inner)
    if issubclass(origin, Mapping):
        return _mapping_reader(_reader(inner[0]), _reader(inner[1]))
    if issubclass(origin, tuple) and inner[-1:] != (Ellipsis,):
        return _tuple_reader([_reader(part) for part in inner])
    return _sequence_reader(list if origin is list else tuple, _reader(inner[0]))


@cache
def _dataclass_reader(kind: type[Any]) -> Reader:
    attributes: tuple[tuple[str, Reader, bool], ...] = ()

    def read(value: Any) -> Any:  # noqa: ANN401
        nonlocal attributes
        if not isinstance(value, dict):
            raise _mismatch(value, "a mapping")
        if not attributes:  # not before the first use, because a dataclass may contain itself
            hints = typing.get_type_hints(kind, include_extras=True)
            attributes = tuple(
                (item.name, _reader(hints[item.name]), item.default is MISSING and item.default_factory is MISSING)
                for item in fields(kind)
            )
        values = {}
        for name, read_attribute, required in attributes:
            if name in value:
                try:
                    values[name] = read_attribute(value[name])
                except _MismatchError as err:
                    err.path.append(name)
                    raise
            elif required:
                missing = _MismatchError("is missing", separator=" ", longest_path=None)
                missing.path.append(name)
                raise missing
        return kind(**values)

    return read


def _checked_reader(read_value: Reader, checks: list[Callable[[Any], object]]) -> Reader:
    def read(value: Any) -> Any:  # noqa: ANN401
        result = read_value(value)
        for check in checks:
            _bounded(check, result)
        return result

    return read


def _bounded(parse: Callable[[Any], T], value: Any) -> T:  # noqa: ANN401
    """Apply a parser from `bounds` to a value."""
    try:
        return parse(value)
    except ValueError as err:
        raise _MismatchError(str(err)) from None


def _union_reader(inner: tuple[Any, ...]) -> Reader:
    optional = type(None) in inner
    *others, last = [_reader(member) for member in inner if member is not type(None)]

    def read(value: Any) -> Any:  # noqa: ANN401
        if value is None and optional:
            return None
        for read_member in others:
            try:
                return read_member(value)
            except ValueError:
                continue
        return last(value)

    return read


def _literal_reader(literals: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:  # noqa: ANN401
        # `True == 1`, so types are compared too.
        if any(value == literal and type(value) is type(literal) for literal in literals):
            return value
        raise _mismatch(value, "one of " + ", ".join(map(str, literals)))

    return read


def _mapping_reader(read_name: Reader, read_value: Reader) -> Reader:
    def read(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, dict):
            raise _mismatch(value, "a mapping")
        result = {}
        for name, below in value.items():
            try:
                result[read_name(name)] = read_value(below)
            except _MismatchError as err:
                err.path.append(str(name))
                raise
        return result

    return read


def _tuple_reader(parts: list[Reader]) -> Reader:
    def read(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, list | tuple):
            raise _mismatch(value, "a list")
        if len(value) != len(parts):
            raise _mismatch(value, f"{len(parts)} values")
        return tuple(_read_elements(parts, value))

    return read


def _sequence_reader(container: Callable[[Iterable[Any]], Any], read_element: Reader) -> Reader:
    def read(value: Any) -> Any:  # noqa: ANN401
        if not isinstance(value, list | tuple):
            raise _mismatch(value, "a list")
        return container(_read_elements(repeat(read_element), value))

    return read


def _read_elements(readers: Iterable[Reader], elements: Iterable[Any]) -> list[Any]:
    result: list[Any] = []  # its length is the position of an invalid element
    try:
        for read, element in zip(readers, elements, strict=False):
            result.append(read(element))
    except _MismatchError as err:
        err.path.append(str(len(result)))
        raise
    return result


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise _mismatch(value, "text")
    return value


def _bytes(value: Any) -> bytes:  # noqa: ANN401
    """Read bytes, which are encoded as base64 in JSON."""
    text = _text(value)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _mismatch(value, "base64") from None


def _flag(value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise _mismatch(value, "true or false")
    return value


def _whole(value: Any) -> int:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool):
        raise _mismatch(value, "a whole number")
    if not -_WHOLE <= value < _WHOLE:
        message = "expected a whole number, got a number that is too large"
        raise _MismatchError(message)
    return value


def _number(value: Any) -> float:  # noqa: ANN401
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _mismatch(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _mismatch(value, "a number") from None


def _finite(value: Any) -> float:  # noqa: ANN401
    number = _number(value)
    if not math.isfinite(number):
        raise _mismatch(value, "a finite number")
    return number


def _figure(value: Any) -> Decimal:  # noqa: ANN401
    """Read a decimal number, which is stored as text so that it is never rounded."""
    return _bounded(bounds.parse_decimal, _text(value))


def _moment(value: Any) -> datetime:  # noqa: ANN401
    """Read a time. A time with no UTC offset is taken to be UTC, because cloudgpu writes only UTC."""
    return _bounded(bounds.parse_time, value)


def _day(value: Any) -> date:  # noqa: ANN401
    return _bounded(bounds.parse_date, value)


_PLAIN: Final[Mapping[Any, Reader]] = {
    str: _text,
    bytes: _bytes,
    bool: _flag,
    int: _whole,
    float: _finite,
    Decimal: _figure,
    datetime: _moment,
    date: _day,
}


def _mismatch(value: object, expected: str) -> _MismatchError:
    return _MismatchError(str(unexpected(value, expected)))


def unexpected(value: object, expected: str) -> ValueError:
    """Return the error for a value that does not have the expected type."""
    shown = value if isinstance(value, str | int | float | bool | None) else type(value).__name__
    text = _shortened(repr(shown) if not isinstance(value, list | dict | tuple) else str(shown))
    return ValueError(f"expected {expected}, got {text}")


def _shortened(text: str, length: int = _SHOWN) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


@contextmanager
def malformed_as(error: Callable[[str], Exception]) -> Iterator[None]:
    """Replace any exception that a malformed document causes with `error(description)`; the description is one line."""
    try:
        yield
    except MALFORMED as err:
        raise error(describe_error(err)) from err


def describe_error(err: BaseException) -> str:
    """Return one short line that describes an exception listed in `MALFORMED`."""
    text = _shortened(" ".join(printable(str(err)).split()), _MAX_DESCRIPTION)
    if isinstance(err, KeyError):  # the text of a KeyError is only the key
        return f"{text} is missing"
    return text or type(err).__name__
