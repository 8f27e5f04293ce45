"""Fake AWS clients that can return every response that botocore could: correct types, any field missing."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from botocore import xform_name
from botocore.model import OperationModel, Shape
from botocore.session import get_session

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
_MISSING = object()
_SCALARS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "character": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "long": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "double": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


class FakeClients:
    """Clients that answer every call with as much of one value as its response type allows."""

    region = "us-east-1"

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def client(self, service: str) -> "FakeClient":
        return FakeClient(service, self._answer)


class FakeClient:
    """Client of one service."""

    def __init__(self, service: str, answer: Any) -> None:
        self._service = service
        self._answer = answer

    def can_paginate(self, _operation: str) -> bool:
        return True

    def get_paginator(self, operation: str) -> "FakePaginator":
        return FakePaginator(getattr(self, operation))

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return lambda **_request: shaped(_operations(self._service)[operation].output_shape, self._answer)


class FakePaginator:
    """Paginator with a single page."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def paginate(self, **_request: Any) -> list[Any]:
        return [self._ask()]


@cache
def _operations(service: str) -> dict[str, OperationModel]:
    model = get_session().get_service_model(service)
    return {xform_name(name): model.operation_model(name) for name in model.operation_names}


def shaped(shape: Shape | None, answer: Any) -> Any:
    """Return a response as botocore would parse it: members of a wrong type are dropped."""
    found = _MISSING if shape is None else _shaped(shape, answer)
    return {"ResponseMetadata": {}, **({} if found is _MISSING else found)}


def _shaped(shape: Any, value: Any) -> Any:
    kind = shape.type_name
    if kind == "structure":
        if not isinstance(value, dict):
            return _MISSING
        found = {name: _shaped(member, value[name]) for name, member in shape.members.items() if name in value}
        return {name: one for name, one in found.items() if one is not _MISSING}
    if kind == "list":
        rows = [_shaped(shape.member, one) for one in value] if isinstance(value, list) else []
        return [one for one in rows if one is not _MISSING] if isinstance(value, list) else _MISSING
    if kind == "timestamp":
        return _time(value)
    return value if kind in _SCALARS and _SCALARS[kind](value) else _MISSING


def _time(value: Any) -> Any:
    """Botocore's times have a time zone and may be at either end of the calendar."""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return _MISSING
    return at if at.tzinfo else at.replace(tzinfo=UTC)
