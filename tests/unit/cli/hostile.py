"""Generate values of any type that contain hostile text, and check what reaches the terminal."""

import ast
import collections.abc
import dataclasses
import importlib
import inspect
import io
import re
import sys
import types
import typing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath

PARTS = (
    *("\x1b[2J", "\x1b[36mhint:\x1b[0m", "\x9b31m", "\x1b]52;c;cm0gLXJmIC8=\x07", "\x1b]0;title\x1b\\"),
    *("\x1bc", "\x90q\x9c", "\r", "\nhint: run this", "\r\nerror: forged", "\x07", "\x08", "\x00", "\x0b", "\x0c"),
    *("\x7f", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200f", "\ufeff", "\ud800", "\udcff"),
)
HOSTILE = "begin" + "-".join(PARTS) + "end"
OURS = re.compile(r"\x1b\[(?:1|2|31|32|33|36|1;31|1;32|1;33)m(?P<text>[^\x1b]*)\x1b\[0m")
FORGED = re.compile(r"^(?:hint: run this|error: forged)", re.MULTILINE)
PLAIN: typing.Final[dict[str, object]] = {
    # Text that is parsed as a number or looked up in one of our tables before it is shown.
    "node_hourly_usd": "1.5",
    "compute_capability": "7.0",
    "files": {"recipe.yaml": HOSTILE},
    "before": "1.5",
    "after": "2.5",
    "last_torch": "2.4",
    "first_torch_without": "2.8",
    "beside": (),
}


PLAIN_TYPES = (str, str | None, dict[str, str], tuple[collections.abc.Mapping[str, typing.Any], ...])


def without_our_colours(text: str) -> str:
    return OURS.sub(lambda found: found["text"], text)


def check_characters(*streams: io.StringIO) -> str:
    """Return the output without our colors, and assert that it contains no terminal control characters."""
    shown = without_our_colours("".join(stream.getvalue() for stream in streams))
    assert {char for char in shown if not char.isprintable()} <= {"\n", "\t"}
    return shown


def check(*streams: io.StringIO) -> str:
    """Do the same, and assert that no line starts with foreign text."""
    shown = check_characters(*streams)
    assert not FORGED.search(shown)
    return shown


def hints(thing: typing.Any) -> dict[str, typing.Any]:
    """Return the types of parameters or fields, including those imported only under TYPE_CHECKING."""
    module = sys.modules[thing.__module__]
    names = dict(vars(module))
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = None
            for one in node.names:
                if one.name not in names and node.col_offset:
                    found = found or importlib.import_module(node.module)
                    names[one.name] = getattr(found, one.name)
    return typing.get_type_hints(thing, globalns=names)


def value(hint: typing.Any, name: str = "") -> typing.Any:
    """Return a value of a type with hostile text in every text field."""
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if name in PLAIN and hint in PLAIN_TYPES:
        return PLAIN[name]
    if hint in SIMPLE:
        return SIMPLE[hint]
    if origin in (typing.Union, types.UnionType):
        return value(next(one for one in args if one is not type(None)), name)
    if origin in (typing.Literal, typing.Annotated):
        return args[0] if origin is typing.Literal else value(args[0], name)
    if origin is tuple:
        return tuple(value(one) for one in args if one is not Ellipsis)
    if origin is collections.abc.Callable:
        return lambda *_: value(args[1])
    if origin is not None:
        return _collection(origin, args)
    return _object(hint)


SIMPLE: typing.Final[dict[typing.Any, typing.Any]] = {
    **{kind: HOSTILE for kind in (str, object, typing.Any)},
    None: None,
    type(None): None,
    bool: False,
    int: 2,
    float: 1.5,
    Decimal: Decimal("1.5"),
    datetime: datetime(2026, 11, 22, tzinfo=UTC),
    date: date(2026, 11, 22),
    timedelta: timedelta(hours=1),
}


def _collection(origin: type, args: tuple[typing.Any, ...]) -> typing.Any:
    if issubclass(origin, collections.abc.Mapping):
        return {value(args[0]): value(args[1])}
    if issubclass(origin, collections.abc.Set):
        return frozenset({value(args[0])})
    return [value(args[0])]


def _object(kind: type) -> typing.Any:
    if issubclass(kind, PurePath):
        return kind("/tmp") / HOSTILE
    if dataclasses.is_dataclass(kind):
        made = object.__new__(kind)  # bypasses validation: a record on disk may contain anything
        for field, hint in hints(kind).items():
            if field in {one.name for one in dataclasses.fields(kind)}:
                object.__setattr__(made, field, value(hint, field))
        return made
    if hasattr(kind, "model_construct"):
        types_of = hints(kind)
        return kind.model_construct(**{name: value(types_of[name], name) for name in kind.model_fields})
    if getattr(kind, "_is_protocol", False):
        return _protocol(kind)
    return kind(3600) if issubclass(kind, int) else kind(HOSTILE)


def _protocol(kind: type) -> types.SimpleNamespace:
    named: dict[str, typing.Any] = {}
    for one in reversed(
        [one for one in kind.__mro__ if getattr(one, "_is_protocol", False) and one is not typing.Protocol]
    ):
        named |= {name: hint for name, hint in getattr(one, "__annotations__", {}).items()}
        named |= {name: hints(part.fget)["return"] for name, part in vars(one).items() if isinstance(part, property)}
    return types.SimpleNamespace(**{name: value(hint, name) for name, hint in named.items()})
