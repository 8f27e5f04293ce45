"""Convert Pulumi's protobuf values to plain Python values and back, including secrets, unknowns and references.

The signatures in this module are constants of Pulumi's protocol.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import struct_pb2  # type: ignore[import-untyped]

from cloudgpu.errors import UnsupportedError

UNKNOWN: Final = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""Pulumi's placeholder for a value that is known only after the actual `up`."""

Path = tuple[str | int, ...]

_UNKNOWNS: Final = frozenset(
    {
        UNKNOWN,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # boolean
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
    }
)
SIGNATURE: Final = "4dabf18193072939515e22adb298388d"
SECRET: Final = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105  a protocol constant
_OUTPUT: Final = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
_RESOURCE: Final = "5cf8f73096256a8f31e491e813e4eb8e"
_FILES: Final = {
    "c44067f5952c0a294b673a41bacd8c17": "an asset",
    "0def7320c3a5731c473e5ecbe6d01bc7": "an archive",
}
_LARGEST_EXACT: Final = 2**53


@dataclass
class Plain:
    """Properties as plain values, and the paths of the secrets among them."""

    values: dict[str, Any]
    secret_paths: set[Path] = field(default_factory=set)


def to_plain(struct: struct_pb2.Struct) -> Plain:
    """Convert a struct to plain values. Nulls among the top-level properties are dropped, as in Pulumi's bridge."""
    secret_paths: set[Path] = set()
    values = {name: _unwrap(value, (name,), secret_paths) for name, value in struct.fields.items()}
    return Plain({name: value for name, value in values.items() if value is not None}, secret_paths)


def struct(values: Mapping[str, Any], secret_names: frozenset[str] = frozenset()) -> struct_pb2.Struct:
    """Convert plain values to a struct, with the properties in `secret_names` marked as secrets."""
    wrapped = {
        name: {SIGNATURE: SECRET, "value": value} if name in secret_names else value for name, value in values.items()
    }
    result = struct_pb2.Struct()
    result.update(wrapped)
    return result


def is_unknown(value: object) -> bool:
    """Return True if the value, or a part of it, is known only after the actual `up`."""
    return any(isinstance(leaf, str) and leaf in _UNKNOWNS for _, leaf in iter_scalars(value))


def iter_scalars(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yield every scalar in a value with its path."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from iter_scalars(inner, (*path, name))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from iter_scalars(inner, (*path, index))
    else:
        yield path, value


def _unwrap(value: struct_pb2.Value, path: Path, secret_paths: set[Path]) -> Any:  # noqa: ANN401
    match value.WhichOneof("kind"):
        case "struct_value":
            return _unwrap_struct(value.struct_value, path, secret_paths)
        case "list_value":
            return [_unwrap(item, (*path, index), secret_paths) for index, item in enumerate(value.list_value.values)]
        case kind:
            return _scalar(value, kind)


def _scalar(value: struct_pb2.Value, kind: str | None) -> str | float | bool | None:
    match kind:
        case "number_value":
            return _number(value.number_value)
        case "string_value":
            return UNKNOWN if value.string_value in _UNKNOWNS else str(value.string_value)
        case "bool_value":
            return bool(value.bool_value)
        case _:
            return None


def _unwrap_struct(inner: struct_pb2.Struct, path: Path, secret_paths: set[Path]) -> Any:  # noqa: ANN401
    if SIGNATURE not in inner.fields:
        return {name: _unwrap(value, (*path, name), secret_paths) for name, value in inner.fields.items()}
    signature = inner.fields[SIGNATURE].string_value
    if signature == SECRET:
        secret_paths.add(path)
        return _unwrap(inner.fields["value"], path, secret_paths)
    if signature == _OUTPUT:
        return _unwrap_output(inner, path, secret_paths)
    if signature == _RESOURCE:
        reference = "id" if "id" in inner.fields else "urn"
        return inner.fields[reference].string_value or UNKNOWN
    kind = _FILES.get(signature, f"a value with signature {signature}")
    where = ".".join(map(str, path))
    message = f"property {where} contains {kind}, which the direct engine does not support"
    raise UnsupportedError(message, hint="pass the content as text")


def _unwrap_output(inner: struct_pb2.Struct, path: Path, secret_paths: set[Path]) -> Any:  # noqa: ANN401
    if inner.fields["secret"].bool_value:
        secret_paths.add(path)
    if "value" not in inner.fields:
        return UNKNOWN
    return _unwrap(inner.fields["value"], path, secret_paths)


def _number(number: float) -> int | float:
    """Convert integral doubles to integers, because protobuf has only doubles and AWS expects integers."""
    return int(number) if number.is_integer() and abs(number) <= _LARGEST_EXACT else number
