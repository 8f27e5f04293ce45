"""Refuse text in a recipe that no node could be given: it would fail on machines that are paid for already.

A NUL character ends every argument, variable and file name of Linux, and half of a surrogate pair has no UTF-8 form.
Other control characters have no place in names, paths and addresses; newlines and tabs belong in a command, a value and
in prose.
"""

from collections.abc import Iterator
from typing import Final

from cloudgpu import bounds
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.text import printable

_PROSE: Final = frozenset({"description", "command", "pattern", "on", "source"})
"""Fields that may have several lines, wherever they stand."""
_VALUES: Final = frozenset({"env", "params"})
"""Mappings whose values may have several lines."""


def faults(value: object, path: FieldPath = ()) -> Iterator[Problem]:
    """Yield a problem for every text of a recipe, its field names included, that cannot be handed to a node."""
    if isinstance(value, dict):
        for name, below in value.items():
            fault = bounds.text_fault(name)
            named = Problem((*path, printable(name)), f"its name: {fault}")
            yield from [named] if fault else faults(below, (*path, name))
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            yield from faults(below, (*path, index))
    else:
        message = _fault(value, path)
        if message:
            yield Problem(path, message)


def may_have_lines(path: FieldPath) -> bool:
    """Return whether newlines and tabs belong in the text of this field."""
    return bool(path) and (path[-1] in _PROSE or (len(path) > 1 and path[-2] in _VALUES))


def _fault(value: object, path: FieldPath) -> str:
    if isinstance(value, int) and abs(value) > bounds.MAX_COUNT:
        return f"expected a whole number of at most {bounds.MAX_COUNT}"
    if not isinstance(value, str):
        return ""
    fault = bounds.text_fault(value, lines=may_have_lines(path))
    if fault:
        return fault
    size = len(value.encode())
    if size > bounds.MAX_ARGUMENT_BYTES:
        return f"{size:,} bytes; Linux hands a program at most {bounds.MAX_ARGUMENT_BYTES:,} in one piece: use a file"
    return ""
