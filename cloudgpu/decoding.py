"""Decode JSON from files, nodes and services into values of known types.

A file may be damaged, edited by hand or written by another version, and nothing that a node or service sends can be
trusted. Without validation at the point of reading, malformed data would fail later, elsewhere, with a traceback.
"""

import base64
import math
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cache
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


def decode_as(kind: type[T], value: object) -> T:
    """Decode a JSON value as a dataclass or any other annotated type.

    Unknown fields are ignored, because a newer version may have written them; missing fields take their defaults. Lists
    become tuples, unless the annotation is `list`, and times are converted to UTC. A field's annotation may be
    `Annotated[type, check]`: `check` receives the decoded value and raises ValueError if the value is invalid.
    """
    return cast("T", _decoded(kind, value, ""))


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _decoded(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401 - any annotation, any value
    if kind is Any or kind is object:
        return value
    if kind is AnyFloat:
        return _number(value, where)
    origin = typing.get_origin(kind)
    if origin is not None:
        return _composite(origin, typing.get_args(kind), value, where)
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    return _plain(kind, value, where)


def _composite(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    if origin is Annotated:
        return _checked(inner, value, where)
    if origin in (typing.Union, types.UnionType):
        return _union(inner, value, where)
    if origin is typing.Literal:
        # `True == 1`, so types are compared too.
        if any(value == literal and type(value) is type(literal) for literal in inner):
            return value
        raise unexpected(value, "one of " + ", ".join(map(str, inner)), where)
    if issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise unexpected(value, "a mapping", where)
        return {
            _decoded(inner[0], name, _below(where, name)): _decoded(inner[1], literal, _below(where, name))
            for name, literal in value.items()
        }
    return _sequence(origin, inner, value, where)


def _checked(inner: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    result = _decoded(inner[0], value, where)
    for check in inner[1:]:
        if callable(check):
            _bounded(check, result, where)
    return result


def _bounded(parse: Callable[[Any], T], value: Any, where: str) -> T:  # noqa: ANN401
    """Apply a parser from `bounds` to a value; prefix its error message with the name of the field."""
    try:
        return parse(value)
    except ValueError as err:
        message = f"{f'{where[:_SHOWN]}: ' if where else ''}{err}"
        raise ValueError(message) from None


def _union(inner: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    if value is None and type(None) in inner:
        return None
    rest = [member for member in inner if member is not type(None)]
    for member in rest[:-1]:
        try:
            return _decoded(member, value, where)
        except ValueError:
            continue
    return _decoded(rest[-1], value, where)


def _sequence(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, list | tuple) or not issubclass(origin, Collection):
        raise unexpected(value, "a list", where)
    if issubclass(origin, tuple) and inner[-1:] != (Ellipsis,):
        if len(value) != len(inner):
            raise unexpected(value, f"{len(inner)} values", where)
        return tuple(
            _decoded(part, element, _below(where, at))
            for at, (part, element) in enumerate(zip(inner, value, strict=True))
        )
    container = list if origin is list else tuple
    return container(_decoded(inner[0], element, _below(where, at)) for at, element in enumerate(value))


def _dataclass(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        raise unexpected(value, "a mapping", where)
    values: dict[str, Any] = {}
    for attribute in fields(kind):
        if attribute.name in value:
            values[attribute.name] = _decoded(
                _hints(kind)[attribute.name], value[attribute.name], _below(where, attribute.name)
            )
        elif attribute.default is MISSING and attribute.default_factory is MISSING:
            message = f"{_below(where, attribute.name)} is missing"
            raise ValueError(message)
    return kind(**values)


def _plain(kind: Any, value: Any, where: str) -> Any:  # noqa: ANN401
    read = _PLAIN.get(kind)
    if read is None:
        message = f"{kind} cannot be read from JSON"
        raise TypeError(message)
    return read(value, where)


def _text(value: Any, where: str) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        raise unexpected(value, "text", where)
    return value


def _bytes(value: Any, where: str) -> bytes:  # noqa: ANN401
    """Read bytes, which are encoded as base64 in JSON."""
    try:
        return base64.b64decode(_text(value, where), validate=True)
    except ValueError:
        raise unexpected(value, "base64", where) from None


def _flag(value: Any, where: str) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        raise unexpected(value, "true or false", where)
    return value


def _whole(value: Any, where: str) -> int:  # noqa: ANN401
    if not isinstance(value, int) or isinstance(value, bool):
        raise unexpected(value, "a whole number", where)
    if not -_WHOLE <= value < _WHOLE:
        message = f"{f'{where[:_SHOWN]}: ' if where else ''}expected a whole number, got a number that is too large"
        raise ValueError(message)
    return value


def _number(value: Any, where: str) -> float:  # noqa: ANN401
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise unexpected(value, "a number", where)
    try:
        return float(value)
    except OverflowError:
        raise unexpected(value, "a number", where) from None


def _finite(value: Any, where: str) -> float:  # noqa: ANN401
    number = _number(value, where)
    if not math.isfinite(number):
        raise unexpected(value, "a finite number", where)
    return number


def _figure(value: Any, where: str) -> Decimal:  # noqa: ANN401
    """Read a decimal number, which is stored as text so that it is never rounded."""
    return _bounded(bounds.parse_decimal, _text(value, where), where)


def _moment(value: Any, where: str) -> datetime:  # noqa: ANN401
    """Read a time. A time with no UTC offset is taken to be UTC, because cloudgpu writes only UTC."""
    return _bounded(bounds.parse_time, value, where)


def _day(value: Any, where: str) -> date:  # noqa: ANN401
    return _bounded(bounds.parse_date, value, where)


_PLAIN: Final[Mapping[Any, Callable[[Any, str], Any]]] = {
    str: _text,
    bytes: _bytes,
    bool: _flag,
    int: _whole,
    float: _finite,
    Decimal: _figure,
    datetime: _moment,
    date: _day,
}


def plain_reader(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - any annotation
    """Return the function that decodes a scalar type, for callers that traverse the document themselves.

    The returned function raises ValueError if its argument does not have that type.
    """
    read = _number if kind is AnyFloat else _PLAIN.get(kind)
    if read is None:
        message = f"{kind} cannot be read from JSON"
        raise TypeError(message)
    return lambda value: read(value, "")


def _below(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def unexpected(value: object, expected: str, where: str = "") -> ValueError:
    """Return the error for a value that does not have the expected type."""
    shown = value if isinstance(value, str | int | float | bool | None) else type(value).__name__
    text = _shortened(repr(shown) if not isinstance(value, list | dict | tuple) else str(shown))
    return ValueError(f"{f'{where[:_SHOWN]}: ' if where else ''}expected {expected}, got {text}")


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
