"""Pydantic adapters for the values in state files, built from the same annotations that `decode_as` reads.

Pydantic validates the structure: dataclasses, tuples and mappings. The readers in `cloudgpu.decoding` validate the
scalar values, because pydantic's own validators differ: they convert 1 to True, do not bound integers and times, and
reject file names that are not valid UTF-8. Messages from nodes are decoded by the same readers, so a field has the same
bounds in a file as in a message.
"""

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from typing import Annotated, Any, Final, TypeVar, cast

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from cloudgpu.decoding import AnyFloat, decode_as, plain_reader, unexpected

_EXPECTED: Final = {
    "dataclass_type": "a mapping",
    "dict_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
}
"""Pydantic error type -> the expected kind of value, in the wording of `decode_as`."""
_SHOWN: Final = 60
"""Maximum length of a field's path in a message. The path of a field in a damaged file may be arbitrarily long."""
T = TypeVar("T")


def decode_stored(kind: type[T], value: object) -> T:
    """Decode a value from a state file as a dataclass or any other annotated type.

    As with `decode_as`, unknown fields are ignored, missing fields take their defaults, lists become tuples, times are
    converted to UTC, and the `check` in `Annotated[type, check]` raises ValueError for an invalid value.
    """
    try:
        return cast("T", _adapter(cast("Any", kind)).validate_python(value))
    except ValidationError as err:
        raise ValueError(_described(err.errors(include_url=False)[0])) from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - any annotation
    """Return the adapter for a type. Building an adapter takes milliseconds, so this waits until the first use."""
    schema = GetPydanticSchema(lambda _source, _handler: _schema(kind))
    return TypeAdapter(Annotated[kind, schema])


def _schema(kind: Any) -> CoreSchema:  # noqa: ANN401 - any annotation
    if kind is Any or kind is object:
        return core_schema.any_schema()
    origin = typing.get_origin(kind)
    if origin is not None and kind is not AnyFloat:
        return _composite_schema(kind, origin, typing.get_args(kind))
    if is_dataclass(kind):
        return _dataclass_schema(kind)
    return core_schema.no_info_plain_validator_function(plain_reader(kind))


def _composite_schema(kind: Any, origin: Any, inner: tuple[Any, ...]) -> CoreSchema:  # noqa: ANN401 - an annotation
    if origin is Annotated:
        return _checked_schema(_schema(inner[0]), inner[1:])
    if origin in (typing.Union, types.UnionType):
        return _optional_schema(kind, inner)
    if origin is typing.Literal:
        return core_schema.no_info_plain_validator_function(partial(decode_as, kind))
    if issubclass(origin, Mapping):
        return core_schema.dict_schema(_schema(inner[0]), _schema(inner[1]))
    return _tuple_schema(inner)


def _tuple_schema(inner: tuple[Any, ...]) -> CoreSchema:
    if inner[-1:] == (Ellipsis,):
        return core_schema.tuple_schema([_schema(inner[0])], variadic_item_index=0)
    return core_schema.tuple_schema([_schema(part) for part in inner])


def _checked_schema(schema: CoreSchema, checks: tuple[Any, ...]) -> CoreSchema:
    for check in checks:
        if callable(check):
            schema = core_schema.no_info_after_validator_function(partial(_checked, check), schema)
    return schema


def _checked(check: Any, value: T) -> T:  # noqa: ANN401 - a parser from `bounds`, or any other check
    check(value)
    return value


def _optional_schema(kind: Any, inner: tuple[Any, ...]) -> CoreSchema:  # noqa: ANN401 - an annotation
    members = [member for member in inner if member is not type(None)]
    if len(members) > 1:
        message = f"{kind}: the type of a field in a state file must be a single type, or a single type or None"
        raise TypeError(message)
    return core_schema.nullable_schema(_schema(members[0]))


def _dataclass_schema(kind: Any) -> CoreSchema:  # noqa: ANN401 - a dataclass
    hints = typing.get_type_hints(kind, include_extras=True)
    attributes = [
        core_schema.dataclass_field(attribute.name, _with_default(attribute, _schema(hints[attribute.name])))
        for attribute in fields(kind)
    ]
    arguments = core_schema.dataclass_args_schema(kind.__name__, attributes)
    return core_schema.dataclass_schema(kind, arguments, [attribute.name for attribute in fields(kind)])


def _with_default(attribute: "Field[Any]", schema: CoreSchema) -> CoreSchema:
    if attribute.default is not MISSING:
        return core_schema.with_default_schema(schema, default=attribute.default)
    if attribute.default_factory is not MISSING:
        return core_schema.with_default_schema(schema, default_factory=attribute.default_factory)
    return schema


def _described(problem: ErrorDetails) -> str:
    """Return a one-line description of a pydantic error, in the wording of `decode_as`."""
    where = ".".join(str(part) for part in problem["loc"] if part != "[key]")
    kind = problem["type"]
    if kind == "missing":
        return f"{where} is missing"
    if kind == "value_error":
        why = str(problem["ctx"]["error"])
    elif kind in _EXPECTED:
        why = str(unexpected(problem["input"], _EXPECTED[kind]))
    else:
        why = problem["msg"]
    return f"{where[:_SHOWN]}: {why}" if where else why
