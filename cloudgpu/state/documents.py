"""The JSON files of the state home, their format numbers and migrations, and the validation of their values.

Every file has the number of its format in the field `format`. A file without it has format 1, as written by
versions before the field existed. Files in old formats are migrated when they are read. Files in a newer format are
rejected, because this version could misread them, or write them back without the fields that it does not know.

Pydantic validates the structure: dataclasses, tuples and mappings. The readers in `cloudgpu.decoding` validate the
scalar values, because pydantic's own validators differ: they convert 1 to True, do not bound integers and times,
and reject file names that are not valid UTF-8. Messages from nodes are decoded by the same readers, so a field has
the same bounds in a file as in a message.
"""

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from datetime import date, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Generic, TypeVar, cast

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from cloudgpu import files
from cloudgpu.decoding import MALFORMED, AnyFloat, decode_as, describe_error, plain_reader, unexpected
from cloudgpu.paths import unwritable_error
from cloudgpu.state.file_format import FORMAT, stored_format

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
Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""Function that converts the content of a file from one format to the next."""


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


class StateFile(Generic[T]):
    """A kind of file in the state home."""

    def __init__(
        self,
        name: str,
        kind: type[T],
        *,
        migrations: tuple[Migration, ...] = (),
        decode: Callable[[dict[str, Any]], T] | None = None,
        encode: Callable[[T], Mapping[str, Any]] | None = None,
    ) -> None:
        """Describe a kind of file.

        Args:
            name: Description of the file for messages, such as `cluster record`.
            kind: Type of the content.
            migrations: The function at index N - 1 converts format N to format N + 1.
            decode: Parses content in the current format. Default: `decode_stored`, by the annotations of `kind`.
            encode: Converts a value to content in the current format. Default: the fields of the dataclass.
        """
        self.name = name
        self.format = len(migrations) + 1
        self._migrations = migrations
        self._decode = decode or partial(decode_stored, kind)
        self._encode = encode or _fields

    def read(self, path: Path) -> T:
        """Read a file."""
        try:
            return self._decode(self._current(files.read_json(path), path))
        except MALFORMED as err:
            raise ValueError(describe_error(err)) from err

    def write(self, path: Path, value: T) -> None:
        """Replace a file atomically and durably."""
        content = {FORMAT: self.format, **self._encode(value)}
        write_durably(path, json.dumps(content, default=_plain, indent=1) + "\n")

    def _current(self, content: object, path: Path) -> dict[str, Any]:
        """Return the content of a file in the current format."""
        if not isinstance(content, dict):
            raise unexpected(content, "a mapping")
        stored = stored_format(path, self.name, content, self.format)
        for migration in self._migrations[stored - 1 :]:
            content = migration(content)
        return content


def documents_in(folder: Path, name: str) -> list[Path]:
    """Return the path of the file with this name in every subdirectory of a directory, sorted by subdirectory.

    The files may not exist: callers must report a file in an unreadable subdirectory as damaged, so this function does
    not skip it. `Path.glob` would skip it, and would also skip all subdirectories after the unreadable one.
    """
    try:
        return sorted(entry / name for entry in folder.iterdir())
    except FileNotFoundError:
        return []


def documents_if_readable(folder: Path, name: str) -> list[Path]:
    """Return the same paths as `documents_in`, or an empty list if the directory cannot be read."""
    try:
        return documents_in(folder, name)
    except OSError:
        return []


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically and durably: the new content survives a power failure."""
    try:
        files.make_private_directory(path.parent)
        files.replace(path, text.encode())
    except OSError as err:
        raise unwritable_error(path, err) from err


def _fields(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    return asdict(value)


def _plain(value: object) -> object:
    if isinstance(value, date | datetime):
        return value.isoformat()
    message = f"{type(value).__name__} cannot be stored in a state file"
    raise TypeError(message)
