"""Property paths in the syntax of resource options: `tags.Name`, `rules[0].port`, `a["b.c"]`, `*`."""

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from cloudgpu.engine.direct.program.protobuf_values import Path
from cloudgpu.errors import BadRequestError

_PART: Final = re.compile(r"""\.?(?:\["((?:[^"\\]|\\.)*)"\]|\[([0-9]+|\*)\]|([^.\[\]"]+))""")
_ABSENT: Final = object()


def parse(text: str) -> Path:
    """Parse a property path into its parts."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            message = f"{text!r} is not a valid property path"
            raise BadRequestError(message, hint='use the form `tags.Name`, `rules[0].port` or `tags["a.b"]`')
        quoted, index, bare = match.groups()
        parts.append(_part(quoted, index, bare))
        position = match.end()
    return tuple(parts)


def restore_old_values(old: Mapping[str, Any], new: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return `new` with the values from `old` at these paths, to implement the `ignore_changes` option."""
    result = copy.deepcopy(dict(new))
    for text in paths:
        _carry(old, result, parse(text))
    return result


def _part(quoted: str | None, index: str | None, bare: str | None) -> str | int:
    if quoted is not None:
        return re.sub(r"\\(.)", r"\1", quoted)
    if index is not None:
        return index if index == "*" else int(index)
    return bare or ""


def _get(value: Any, part: str | int) -> Any:  # noqa: ANN401
    try:
        return value[part]
    except (KeyError, IndexError, TypeError):
        return _ABSENT


def _parts(part: str | int, *values: Any) -> list[str | int]:  # noqa: ANN401
    """Return the concrete keys or indices that a part matches in any of the values."""
    if part != "*":
        return [part]
    keys: dict[str | int, None] = {}
    for value in values:
        if isinstance(value, Mapping):
            keys |= dict.fromkeys(value)
        elif isinstance(value, list):
            keys |= dict.fromkeys(range(len(value)))
    return list(keys)


def _carry(old: Any, new: Any, path: Path) -> None:  # noqa: ANN401
    if not isinstance(new, dict | list) or not path:
        return
    for part in reversed(_parts(path[0], old, new)):  # in reverse, because removing a list item shifts later items
        before = _get(old, part)
        if len(path) > 1:
            _carry(before, _get(new, part), path[1:])
        elif before is _ABSENT:
            _drop(new, part)
        else:
            _put(new, part, before)


def _drop(container: Any, part: str | int) -> None:  # noqa: ANN401
    if isinstance(container, dict):
        container.pop(part, None)
    elif isinstance(part, int) and part < len(container):
        del container[part]


def _put(container: Any, part: str | int, value: Any) -> None:  # noqa: ANN401
    if isinstance(container, dict) or (isinstance(part, int) and part < len(container)):
        container[part] = copy.deepcopy(value)
