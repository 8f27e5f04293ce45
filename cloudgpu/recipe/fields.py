"""Look up fields, sections and types of the recipe schema by field path."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from cloudgpu.recipe.problem import FieldPath
from cloudgpu.recipe.schema import Recipe

Section = type[BaseModel]


def names_at(path: FieldPath) -> list[str]:
    """Return the field names of the section at a path, as written in the file; empty if the path is not a section."""
    section = section_at(path)
    return [] if section is None else [info.alias or name for name, info in section.model_fields.items()]


def section_at(path: FieldPath) -> Section | None:
    """Return the section at a path; None if the path is not a section."""
    return next((option for option in options(annotation_at(path)) if _is_section(option)), None)


def section_within(annotation: Any) -> Section | None:  # noqa: ANN401 - any annotation
    """Return the section that a field contains directly, in a list or in a mapping; None if there is none."""
    for option in options(annotation):
        if _is_section(option):
            section: Section = option
            return section
        if get_origin(option) in (tuple, dict):
            return section_within(get_args(option)[1 if get_origin(option) is dict else 0])
    return None


def annotation_at(path: FieldPath) -> Any:  # noqa: ANN401 - any annotation
    """Return the annotation of the field at a path; None if there is no such field."""
    annotation: Any = Recipe
    for part in path:
        annotation = _below(annotation, part)
    return annotation


def options(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """Yield the alternatives of a union, flattened and without constraints."""
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
    """Return the annotation of a field by its name in the file."""
    for name, info in section.model_fields.items():
        if written == (info.alias or name):
            return info.annotation
    return None


def _is_section(option: object) -> bool:
    return isinstance(option, type) and issubclass(option, BaseModel)
