"""Reject text in a recipe that cannot be passed to a node, before instances are launched and billed.

A NUL character ends every argument, variable and file name in Linux, and an unpaired surrogate has no UTF-8 form. Other
control characters do not belong in names, paths and URLs; newlines and tabs are allowed in commands, values and
descriptions.
"""

from collections.abc import Iterator
from typing import Final

from cloudgpu import bounds
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.text import printable

_PROSE: Final = frozenset({"description", "command", "run", "setup", "pattern", "on", "source"})
"""Names of fields that may contain several lines, in any section."""
_VALUES: Final = frozenset({"env", "params"})
"""Mappings whose values may contain several lines."""


def text_problems(value: object, path: FieldPath = ()) -> Iterator[Problem]:
    """Yield a problem for every text, field name or whole number in a recipe that cannot be passed to a node."""
    if isinstance(value, dict):
        for name, item in value.items():
            fault = bounds.text_fault(name)
            problem = Problem((*path, printable(name)), f"invalid name: {fault}")
            yield from [problem] if fault else text_problems(item, (*path, name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from text_problems(item, (*path, index))
    else:
        message = _fault(value, path)
        if message:
            yield Problem(path, message)


def allows_newlines(path: FieldPath) -> bool:
    """Return True if the text of this field may contain newlines and tabs."""
    return bool(path) and (path[-1] in _PROSE or (len(path) > 1 and path[-2] in _VALUES))


def _fault(value: object, path: FieldPath) -> str:
    if isinstance(value, int) and abs(value) > bounds.MAX_COUNT:
        return f"expected a whole number of at most {bounds.MAX_COUNT}"
    if not isinstance(value, str):
        return ""
    fault = bounds.text_fault(value, lines=allows_newlines(path))
    if fault:
        return fault
    size = len(value.encode())
    if size > bounds.MAX_ARGUMENT_BYTES:
        return f"{size:,} bytes; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,} in one argument; use a file"
    return ""
