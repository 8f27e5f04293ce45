"""Check independently of the parser that an accepted value matches its annotations."""

import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cache
from typing import Any


def conforms(kind: Any, value: object, *, may_be_infinite: Collection[str] = ()) -> bool:
    """Assert that a value has the type of an annotation, that figures are finite and times are UTC.

    Args:
        kind: The annotation.
        value: What a parser accepted.
        may_be_infinite: Fields whose figures need not be finite.
    """
    _check(kind, value, getattr(kind, "__name__", str(kind)), may_be_infinite)
    return True


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check(kind: Any, value: Any, where: str, loose: Collection[str]) -> None:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or isinstance(kind, typing.TypeVar):
        return
    if origin in (typing.Union, types.UnionType):
        _check_union(inner, value, where, loose)
    elif origin is typing.Literal:
        assert any(value == one and type(value) is type(one) for one in inner), f"{where}: {value!r}"
    elif origin is typing.Annotated:
        _check(inner[0], value, where, loose)
    elif origin is not None:
        _check_several(origin, inner, value, where, loose)
    elif is_dataclass(kind):
        _check_dataclass(kind, value, where, loose)
    else:
        _check_plain(kind, value, where, loose)


def _check_union(inner: Sequence[Any], value: Any, where: str, loose: Collection[str]) -> None:
    for one in inner:
        try:
            return _check(one, value, where, loose)
        except AssertionError:
            continue
    raise AssertionError(f"{where}: {value!r} is none of {inner}")


def _check_several(origin: Any, inner: Sequence[Any], value: Any, where: str, loose: Collection[str]) -> None:
    if issubclass(origin, Mapping):
        assert isinstance(value, Mapping), f"{where}: {value!r}"
        for key, one in value.items():
            _check(inner[0], key, f"{where} key", loose)
            _check(inner[1], one, f"{where}[{str(key)[:20]!r}]", loose)
    elif issubclass(origin, tuple) and inner[-1:] != (Ellipsis,):
        assert isinstance(value, tuple), f"{where}: {value!r}"
        assert len(value) == len(inner), f"{where}: {value!r}"
        for part, one in zip(inner, value, strict=True):
            _check(part, one, where, loose)
    elif issubclass(origin, Collection):
        assert isinstance(value, origin), f"{where}: {value!r}"
        for one in value:
            _check(inner[0], one, where, loose)
    else:
        assert isinstance(value, origin), f"{where}: {value!r}"
        if is_dataclass(origin):
            _check_dataclass(origin, value, where, loose, skip_types=True)


def _check_dataclass(kind: Any, value: Any, where: str, loose: Collection[str], *, skip_types: bool = False) -> None:
    assert isinstance(value, kind), f"{where}: {value!r}"
    for one in fields(kind):
        if not skip_types:
            _check(_hints(kind)[one.name], getattr(value, one.name), f"{where}.{one.name}", loose)


def _check_plain(kind: Any, value: Any, where: str, loose: Collection[str]) -> None:
    if kind is float:
        assert isinstance(value, int | float), f"{where}: {value!r}"
        assert not isinstance(value, bool), f"{where}: {value!r}"
        assert any(name in where for name in loose) or math.isfinite(value), f"{where}: {value!r}"
    elif kind is int:
        assert type(value) is int, f"{where}: {value!r}"
    elif kind is Decimal:
        assert isinstance(value, Decimal), f"{where}: {value!r}"
        assert value.is_finite(), f"{where}: {value!r}"
    elif kind is datetime:
        assert isinstance(value, datetime), f"{where}: {value!r}"
        assert value.utcoffset() == UTC.utcoffset(None), f"{where}: {value!r}"
    elif kind is date:
        assert type(value) is date, f"{where}: {value!r}"
    elif kind is type(None):
        assert value is None, f"{where}: {value!r}"
    elif isinstance(kind, type):
        assert isinstance(value, kind), f"{where}: {value!r}"
