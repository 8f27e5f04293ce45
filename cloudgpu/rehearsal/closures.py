"""Pickle functions that were made inside other functions: moto's back ends hold some as defaults of dictionaries."""

import importlib
import marshal
from types import CellType, FunctionType
from typing import Any


def is_local(value: object) -> bool:
    """Whether this is a function that a module cannot find by name."""
    return isinstance(value, FunctionType) and "<" in value.__qualname__


def take_apart(function: FunctionType) -> tuple[Any, ...]:
    """What `pickle` needs to make it again: code first, what it closes over later, so that cycles are possible."""
    cells = function.__closure__ or ()
    code = marshal.dumps(function.__code__)
    made = (function.__module__, code, function.__defaults__, len(cells))
    return _blank, made, [cell.cell_contents for cell in cells], None, None, _fill


def _blank(module: str, code: bytes, defaults: tuple[Any, ...] | None, cells: int) -> FunctionType:
    namespace = vars(importlib.import_module(module))
    closure = tuple(CellType() for _ in range(cells))
    return FunctionType(marshal.loads(code), namespace, None, defaults, closure)  # noqa: S302 - our own snapshot


def _fill(function: FunctionType, contents: list[Any]) -> None:
    for cell, value in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = value
