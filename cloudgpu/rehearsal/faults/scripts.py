"""Find fault scripts in the built-in library or in files, parse them, and combine them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cloudgpu.decoding import MALFORMED, describe_error
from cloudgpu.errors import UsageError
from cloudgpu.files import SETTINGS_BYTES, read_text
from cloudgpu.recipe.document import parse
from cloudgpu.recipe.problem import suggestion
from cloudgpu.rehearsal.faults.api_faults import conditions_from, rule_from
from cloudgpu.rehearsal.faults.node_faults import node_fault_from

_ABOUT = ("description", "parameters")
_PARTS: Mapping[str, type] = {"rules": list, "capacity": dict, "quotas": dict, "cloud": dict, "nodes": list}


@dataclass(frozen=True)
class FaultScript:
    """A fault script as written.

    `parts` may contain `{parameter}` placeholders; `parameters` maps the parameter names to their default values.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)

    def filled(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """Return the parts, with each placeholder replaced by its value in `overrides` or by the default."""
        values = dict(self.parameters)
        for name, text in overrides.items():
            if name in values:
                values[name] = _converted(values[name], text, name)
        return {name: _substituted(part, values) for name, part in self.parts.items()}


@cache
def builtin_scripts() -> Mapping[str, FaultScript]:
    """Return the built-in fault scripts by name."""
    folder = files("cloudgpu.rehearsal.faults") / "library"
    file_names = sorted(item.name for item in folder.iterdir() if item.name.endswith(".yaml"))
    texts = {name.removesuffix(".yaml"): (folder / name).read_text("utf-8") for name in file_names}
    return {name: parse_script(name, text) for name, text in texts.items()}


def find_script(name_or_file: str) -> FaultScript:
    """Return the built-in fault script with this name, or parse the file at this path."""
    if name_or_file in builtin_scripts():
        return builtin_scripts()[name_or_file]
    path = Path(name_or_file)
    if path.suffix not in (".yaml", ".yml", ".json") and not path.is_file():
        message = f"unknown fault script {name_or_file}{suggestion(name_or_file, builtin_scripts())}"
        raise UsageError(message, hint="list the scripts with `cloudgpu rehearsal fault list`, or specify a file")
    try:
        return parse_script(path.name, read_text(path, SETTINGS_BYTES))
    except OSError as err:
        message = f"cannot read the fault script {path}: {err}"
        raise UsageError(message, hint="check the path, or use a script from `cloudgpu rehearsal fault list`") from err


def parse_script(name: str, text: str) -> FaultScript:
    """Parse a script: a mapping of parts, or a bare list of rules."""
    document = parse(text)
    if document.problems:
        line, problem = document.problems[0]
        raise _invalid(name, f"line {line}: {problem.text}")
    value = document.value
    if isinstance(value, list):
        value = {"rules": value}
    if not isinstance(value, dict):
        raise _invalid(name, "it must be a mapping or a list of rules")
    for key, part in value.items():
        if key not in (*_ABOUT, *_PARTS):
            raise _invalid(name, f"unknown part {key!r}; choose from {', '.join((*_ABOUT, *_PARTS))}")
        if key in _PARTS and not isinstance(part, _PARTS[key]):
            raise _invalid(name, f"{key} must be a {_PARTS[key].__name__}")
    parts = {key: part for key, part in value.items() if key in _PARTS}
    return FaultScript(name, str(value.get("description", "")), dict(value.get("parameters") or {}), parts)


def combine_scripts(scripts: Sequence[FaultScript], overrides: Mapping[str, str]) -> dict[str, Any]:
    """Combine several scripts: concatenate lists and merge mappings. For repeated keys, the last value wins."""
    known = {name for script in scripts for name in script.parameters}
    for name in overrides:
        if name not in known:
            message = f"none of these fault scripts has a parameter {name}"
            hint = f"choose from: {', '.join(sorted(known))}" if known else "the scripts have no parameters: omit --set"
            raise UsageError(message, hint=hint)
    combined: dict[str, Any] = {name: kind() for name, kind in _PARTS.items()}
    for script in scripts:
        parts = script.filled(overrides)
        _check(script.name, parts)
        for name, part in parts.items():
            combined[name] = combined[name] + part if isinstance(part, list) else {**combined[name], **part}
    return combined


def _check(name: str, parts: Mapping[str, Any]) -> None:
    try:
        for position, row in enumerate(parts.get("rules", ())):
            rule_from(row, position)
        for row in parts.get("nodes", ()):
            node_fault_from(row)
        conditions_from(parts.get("cloud", {}))
    except MALFORMED as err:
        raise _invalid(name, describe_error(err)) from err


def _invalid(name: str, why: str) -> UsageError:
    return UsageError(f"fault script {name} is not valid: {why}", hint="see docs/reference/faults.md for the format")


def _converted(default: object, text: str, name: str) -> object:
    if not isinstance(default, int | float):
        return text
    try:
        return type(default)(text)
    except MALFORMED as err:
        message = f"{name}={text} is not a number"
        raise UsageError(message, hint=f"set a number, for example {name}={default}") from err


def _substituted(value: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - YAML
    """Replace placeholders. A string that is only a `{parameter}` becomes the parameter's value and keeps its type."""
    if isinstance(value, str):
        parameter = value[1:-1] if value.startswith("{") and value.endswith("}") else ""
        if parameter in values:
            return values[parameter]
        for name, replacement in values.items():
            value = value.replace(f"{{{name}}}", str(replacement))
        return value
    if isinstance(value, list):
        return [_substituted(item, values) for item in value]
    if isinstance(value, dict):
        return {_substituted(key, values): _substituted(item, values) for key, item in value.items()}
    return value
