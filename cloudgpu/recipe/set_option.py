"""Apply one `--set name=value`: find the parameter or field and convert the value to its type."""

from collections.abc import Mapping
from typing import Any, get_origin

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cloudgpu import bounds
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.document import scalar
from cloudgpu.recipe.problem import FieldPath, suggestion
from cloudgpu.recipe.schema import Scalar, alternatives, annotation_at, names_at, section_at
from cloudgpu.text import command

_HARDWARE = ("gpu", "any_of", "instance_type")
_FIELDS = "cloudgpu recipe show RECIPE lists the parameters and fields with their current values"


def assign(values: dict[str, Any], name: str, text: str) -> FieldPath:
    """Apply one assignment to the plain values of a recipe, and return the path of the changed field.

    A parameter takes precedence over a field with the same name. Setting one of gpu, any_of or instance_type removes
    the other two, and setting launch.command or launch.run removes the other. A name that ends with `+` adds entries to
    a list.
    """
    params: Mapping[str, Scalar] = values.get("params", {})
    if name.endswith("+"):
        return _add(values, name.removesuffix("+"), text)
    if name.removeprefix("params.") in params:
        name = name.removeprefix("params.")
        values["params"][name] = _convert_like(params[name], text, name)
        return ("params", name)
    path = _path(name, tuple(params))
    if path[:1] == ("resources",) and path[-1] in _HARDWARE:
        for other in _HARDWARE:
            values["resources"].pop(other, None)
    value = _field_value(path, text, name)
    if path[:1] == ("launch",) and path[1:] in (("command",), ("run",)):
        set_launch_field(values["launch"], str(path[1]), value)
    else:
        _write(values, path, value)
    return path


def _add(values: dict[str, Any], name: str, text: str) -> FieldPath:
    """Add entries to a list field, except those that it already has."""
    path = _path(name, ())
    entries = _field_value(path, text, name)
    if not isinstance(entries, list):
        message = f"--set {name}+=: {name} is not a list"
        raise RecipeError(message, problems=[message], hint=f"replace the value: {command('--set', f'{name}=...')}")
    present: Any = values
    for part in path:
        present = present.get(part) if isinstance(present, dict) else None
    _write(values, path, list(dict.fromkeys([*(present or ()), *entries])))
    return path


def set_launch_field(launch: dict[str, Any], field: str, value: object) -> None:
    """Set a field of the launch section. `command` and `run` replace each other, because a rank has only one."""
    if field in ("command", "run"):
        launch.pop("run" if field == "command" else "command", None)
    launch[field] = value


def _path(name: str, params: tuple[str, ...]) -> FieldPath:
    """Return the path of the parameter or field with a dotted name."""
    path: FieldPath = ()
    parts = name.split(".")
    for index, part in enumerate(parts):
        known = names_at(path)
        if _is_mapping(path) and path != ("params",) and section_at((*path, part)) is None:
            return (*path, ".".join(parts[index:]))
        if part not in known and (path == ("params",) or not _is_mapping(path)):
            choices = [*params, *_dotted(known, path), *_all_section_fields()]
            meant = next((choice for choice in choices if choice.endswith(f".{name}")), name)
            message = f"--set {name}: no such parameter or field{suggestion(meant, choices)}"
            listed = ", ".join(params) or "none"
            raise RecipeError(message, problems=[message], hint=f"this recipe's parameters: {listed}")
        path = (*path, part)
    return path


def _dotted(names: list[str], path: FieldPath) -> list[str]:
    prefix = "".join(f"{part}." for part in path)
    return [prefix + name for name in names]


def _all_section_fields() -> list[str]:
    """Return every `section.field` name, for suggestions."""
    return [dotted for section in names_at(()) for dotted in _dotted(names_at((section,)), (section,))]


def _is_mapping(path: FieldPath) -> bool:
    return any(get_origin(option) is dict for option in alternatives(annotation_at(path)))


def _field_value(path: FieldPath, text: str, name: str) -> Any:  # noqa: ANN401 - any field
    """Return the text in the form that the field's type expects. Pydantic validates it later."""
    types = list(alternatives(annotation_at(path)))
    if section_at(path) is not None or _is_mapping(path) or section_at((*path, 0)) is not None:
        message = f"--set {name}: cannot be set as a whole; set a single field"
        raise RecipeError(message, problems=[message], hint=_FIELDS)
    if any(get_origin(option) is tuple for option in types):
        return [part.strip() for part in text.split(",") if part.strip()]
    if type(None) in types and text in ("", "null"):
        return None
    return text if str in types and int not in types else _guess(text)


def _write(values: dict[str, Any], path: FieldPath, value: object) -> None:
    for index, part in enumerate(path[:-1]):
        if not isinstance(values.get(str(part)), dict):
            values[str(part)] = {}
            if _has_several_required_fields(path[: index + 1]):
                names = ", ".join(names_at(path[: index + 1]))
                message = f"--set {'.'.join(map(str, path))}: the recipe does not have this section (fields: {names})"
                raise RecipeError(message, problems=[message], hint="add the section to the recipe file")
        values = values[str(part)]
    values[str(path[-1])] = value


def _has_several_required_fields(path: FieldPath) -> bool:
    """Return True if the section has several required fields, so that one assignment cannot create it."""
    section = section_at(path)
    required = [] if section is None else [info for info in section.model_fields.values() if info.is_required()]
    return len(required) > 1


def _convert_like(default: Scalar, text: str, name: str) -> Scalar:
    """Return the text converted to the type of a parameter's default."""
    if default is None:
        return _guess(text)
    try:
        parsed: Scalar = _PARSERS[type(default)](text)
    except (ValueError, KeyError):
        kind = _KINDS[type(default)]
        message = f"--set {name}={text}: expected {kind}, like its default {str(default).lower()}"
        raise RecipeError(message, problems=[message], hint=_FIELDS) from None
    return parsed


def _guess(text: str) -> Scalar:
    """Return the YAML scalar that the text represents, or the text itself if it is not a single plain scalar."""
    try:
        node = YAML(typ="safe", pure=True).compose(text)
        value = scalar(text.strip(), str(node.tag)) if _plain(node, text) else text
        return bounds.parse_whole_number(text.strip(), least=-bounds.MAX_COUNT) if type(value) is int else value
    except (YAMLError, ValueError):
        return text


def _plain(node: Any, text: str) -> bool:  # noqa: ANN401 - ruamel's node
    return node is not None and getattr(node, "style", "") is None and node.value == text.strip()


_PARSERS: Mapping[type, Any] = {
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: lambda text: bounds.parse_whole_number(text, least=-bounds.MAX_COUNT),
    # Let `inf` and `nan` through: the schema rejects numbers that are not finite.
    float: lambda text: float(text if text.isalpha() else bounds.parse_decimal(text)),
    str: str,
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}
