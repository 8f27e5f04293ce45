"""Walking the schema by field path: which names may stand where, and of what type."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cloudgpu.recipe.problem import FieldPath
from cloudgpu.recipe.schema import Recipe

Section = type[BaseModel]


def names_at(path: FieldPath) -> list[str]:
    """The names that may stand below this place, as they are written; empty where any name may or none."""
    section = section_at(path)
    return [] if section is None else [info.alias or name for name, info in section.model_fields.items()]


def section_at(path: FieldPath) -> Section | None:
    """The section at this place; None when there is none."""
    return next((option for option in options(annotation_at(path)) if _is_section(option)), None)


def section_within(annotation: Any) -> Section | None:  # noqa: ANN401 - any annotation
    """The section that a field holds, directly, in a list or by name; None when it holds values."""
    for option in options(annotation):
        if _is_section(option):
            found: Section = option
            return found
        if get_origin(option) in (tuple, dict):
            return section_within(get_args(option)[1 if get_origin(option) is dict else 0])
    return None


def annotation_at(path: FieldPath) -> Any:  # noqa: ANN401 - any annotation
    """The annotation of the field at this place; None when no such field exists."""
    annotation: Any = Recipe
    for part in path:
        annotation = _below(annotation, part)
    return annotation


def options(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """The alternatives of a union, flat and without their constraints."""
    if get_origin(annotation) is Annotated:
        yield from options(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from options(option)
    else:
        yield annotation


def _below(annotation: Any, part: str | int) -> Any:  # noqa: ANN401 - any annotation
    for option in options(annotation):
        if _is_section(option):
            return _field(option, part)
        if get_origin(option) is tuple and isinstance(part, int):
            return get_args(option)[0]
        if get_origin(option) is dict:
            return get_args(option)[1]
    return None


def _field(section: Section, written: str | int) -> Any:  # noqa: ANN401 - any annotation
    """The annotation of a field by the name it has in the file."""
    for name, info in section.model_fields.items():
        if written == (info.alias or name):
            return info.annotation
    return None


def _is_section(option: object) -> bool:
    return isinstance(option, type) and issubclass(option, BaseModel)
