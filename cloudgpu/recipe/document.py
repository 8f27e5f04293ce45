"""Read a recipe's YAML with line numbers, and rewrite pydantic's validation errors in terms of the file.

Recipes are untrusted input, so the text is read as events first: size, depth, aliases and tags are limited before
any value is built, and the result contains only text, numbers, booleans, null, lists and mappings.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cloudgpu.recipe.problem import FieldPath, Problem, suggestion
from cloudgpu.recipe.schema import Recipe, names_at, to_plain_values

MAX_DEPTH = 30
MAX_ALIASES = 16
MAX_VALUES = 10_000

_TOO_MANY = f"more than {MAX_VALUES} values"
NOT_YAML = "not valid YAML"
"""Start of the text of every syntax error."""
_KIND = "tag:yaml.org,2002:"
NO_TEXTS: Mapping[FieldPath, str] = {}
_EXPECTED = {
    "model_type": "a mapping of fields",
    "dict_type": "a mapping of names to values",
    "tuple_type": "a list",
    "path_type": "a path",
    "bool_type": "true or false",
}
_LIMIT_WORDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_ABSENT = object()
_PATTERNS = {
    r"^[a-z][a-z0-9-]{0,39}$": "up to 40 lowercase letters, digits and dashes, starting with a letter",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable (letters, digits, underscores)",
    r"^3\.[0-9]{1,3}$": 'a Python version in quotes, for example "3.11"',
}


@dataclass(frozen=True)
class Document:
    """A parsed YAML file.

    Attributes:
        value: The plain value; undefined if there are problems.
        lines: Field path -> line number, counted from 1.
        problems: Syntax problems, each with its line.
        texts: Field path -> number or boolean as it is written, such as `3.10` for 3.1.
    """

    value: Any
    lines: Mapping[FieldPath, int]
    problems: tuple[tuple[int, Problem], ...] = ()
    texts: Mapping[FieldPath, str] = field(default_factory=dict)

    def line(self, path: FieldPath) -> int:
        """Return the line of a field, or of the nearest enclosing field in the file."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1


@dataclass(frozen=True)
class _UnfitError(Exception):
    """YAML text exceeds a limit or uses an unsupported feature. `line` is the line number, counted from 1."""

    line: int
    message: str


def parse(text: str) -> Document:
    """Parse one YAML document. Syntax errors are returned in `problems`, not raised."""
    try:
        _check_events(text)
        builder = _Builder()
        value = builder.build(_root(text), ())
    except _UnfitError as unfit:
        return Document(None, {}, ((unfit.line, Problem((), unfit.message)),))
    except MarkedYAMLError as err:
        return Document(None, {}, ((_line(err), Problem((), f"{NOT_YAML}: {_reason(err)}")),))
    except YAMLError as err:
        reason = str(err).splitlines()[0]
        return Document(None, {}, ((_line_of_reader_error(text, err), Problem((), f"{NOT_YAML}: {reason}")),))
    return Document(value, builder.lines, tuple(builder.problems), builder.texts)


def as_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML that loads back into an equal recipe."""
    yaml = YAML(typ="rt")
    yaml.width = 10_000  # keeps commands on one line, so that users can copy them
    yaml.default_flow_style = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    values, text = to_plain_values(recipe), io.StringIO()
    if recipe.budget.max_usd is not None:
        usd = recipe.budget.max_usd
        values["budget"]["max_usd"] = int(usd) if usd == int(usd) else float(usd)  # easier to read than a quoted number
    yaml.dump(values, text)
    return text.getvalue()


def _yaml() -> YAML:
    """Return the safe parser. The round-trip parser would leave markers inside folded text."""
    return YAML(typ="safe", pure=True)


def _root(text: str) -> Node:
    node: Node | None = _yaml().compose(text)
    if node is None:
        raise _UnfitError(1, "the file contains no fields")
    return node


def _check_events(text: str) -> None:
    """Reject text with too many values, levels or aliases, with tags, or with a YAML version other than 1.2."""
    depth = aliases = 0
    for count, event in enumerate(_yaml().parse(text)):
        kind = type(event).__name__
        line = event.start_mark.line + 1
        if count > MAX_VALUES:
            raise _UnfitError(line, _TOO_MANY)
        depth += kind.endswith(("MappingStartEvent", "SequenceStartEvent"))
        depth -= kind.endswith(("MappingEndEvent", "SequenceEndEvent"))
        aliases += kind == "AliasEvent"
        if depth > MAX_DEPTH:
            raise _UnfitError(line, f"nested more than {MAX_DEPTH} levels deep")
        if aliases > MAX_ALIASES:
            raise _UnfitError(line, f"more than {MAX_ALIASES} aliases (*name); write out the values")
        if getattr(event, "version", None) not in (None, (1, 2)):
            raise _UnfitError(line, "only YAML 1.2 is supported; remove the %YAML line")
        tag = getattr(event, "ctag", None)
        if tag is not None:
            raise _UnfitError(line, f"the tag {tag} is not allowed; use plain values")


@dataclass
class _Builder:
    """Build values from YAML nodes and record the line of every field."""

    lines: dict[FieldPath, int] = field(default_factory=dict)
    problems: list[tuple[int, Problem]] = field(default_factory=list)
    texts: dict[FieldPath, str] = field(default_factory=dict)

    def build(self, node: Node, path: FieldPath) -> Any:  # noqa: ANN401 - any YAML value
        """Return the plain value of a node. Aliases are expanded, so the total size is limited here."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if len(self.lines) > MAX_VALUES or len(path) > MAX_DEPTH:
            raise _UnfitError(node.start_mark.line + 1, _TOO_MANY)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: FieldPath) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for line, key, value in self._fields(node, path):
            self.lines[(*path, key)] = line
            built[key] = self.build(value, (*path, key))
        return built

    def _fields(self, node: MappingNode, path: FieldPath) -> Iterator[tuple[int, str, Node]]:
        """Yield the line, key and value of every field with a unique plain name; record a problem for other fields."""
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self.problems.append((line, Problem(path, "a field name must be plain text")))
            elif key.tag == _KIND + "merge":
                self.problems.append(
                    (line, Problem((*path, "<<"), "merge keys are not supported; write out the fields"))
                )
            elif key.value in first:
                message = f"duplicate field, first set on line {first[key.value]}"
                self.problems.append((line, Problem((*path, key.value), message)))
            else:
                first[key.value] = line
                yield line, key.value, value

    def _scalar(self, node: Node, path: FieldPath) -> str | int | float | bool | None:
        try:
            value = scalar(node.value, str(node.tag))
        except ValueError:
            self.problems.append((node.start_mark.line + 1, Problem(path, "not a valid number")))
            return None
        if value is not None and not isinstance(value, str):
            self.texts[path] = node.value
        return value


def scalar(text: str, tag: str) -> str | int | float | bool | None:
    """Return the value of a scalar according to its resolved YAML 1.2 tag. Dates remain text."""
    match tag.removeprefix(_KIND):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return _integer(text.replace("_", ""))
        case "float":
            return _floating(text.replace("_", "").lower())
        case _:
            return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    return int(text, 0 if digits[:2].lower() in ("0x", "0o", "0b") else 10)


def _floating(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _line(err: MarkedYAMLError) -> int:
    mark = err.problem_mark or err.context_mark
    return 1 if mark is None else mark.line + 1


def _reason(err: MarkedYAMLError) -> str:
    reason = str(err.problem or err.context or "cannot be read")
    return "indented with a tab; use spaces" if r"'\t'" in reason else reason.splitlines()[0]


def _line_of_reader_error(text: str, err: YAMLError) -> int:
    position = getattr(err, "position", 0)
    return text.count("\n", 0, position) + 1


def field_problems(
    error: ValidationError, value: object, texts: Mapping[FieldPath, str] = NO_TEXTS
) -> tuple[Problem, ...]:
    """Return one problem per invalid field, in schema order.

    Args:
        error: The errors of pydantic.
        value: The input that failed validation.
        texts: Field path -> number or boolean as it is written, to show it like this.
    """
    by_path: dict[FieldPath, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        path = _path(details, value)
        details["input"] = texts.get(path, details["input"])
        by_path.setdefault(path, []).append(details)
    return tuple(Problem(path, _message(errors)) for path, errors in by_path.items())


def _path(details: ErrorDetails, value: object) -> FieldPath:
    """Return the field path, without the union branch names that pydantic adds."""
    path: FieldPath = ()
    for part in details["loc"]:
        item = _item(value, part)
        if item is _ABSENT:
            return (*path, part) if details["type"] == "missing" else path
        path, value = (*path, part), item
    return path


def _item(value: object, part: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(part, _ABSENT)
    if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _message(errors: list[ErrorDetails]) -> str:
    """Combine all errors of a field into one sentence. A union produces one error per branch."""
    if len(errors) == 1:
        return _sentence(errors[0])
    if all(details["type"].startswith(("string", "int", "float", "bool", "finite")) for details in errors):
        return "expected text, a finite number, true or false, or null"
    heads, _, got = zip(*(_sentence(details).partition(", got ") for details in errors), strict=True)
    alternatives = " or ".join(head.removeprefix("expected ") for head in dict.fromkeys(heads))
    return f"expected {alternatives}, got {got[-1]}"


def _sentence(details: ErrorDetails) -> str:
    kind = details["type"]
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {_shown(details['input'])}"
    if kind in _LIMIT_WORDS:
        key, words = _LIMIT_WORDS[kind]
        return f"expected {words} {details['ctx'][key]}, got {_shown(details['input'])}"
    return _WORDS.get(kind, _other)(details)


def _unknown_field(details: ErrorDetails) -> str:
    known = names_at(details["loc"][:-1])
    return f"unknown field{suggestion(str(details['loc'][-1]), known) or _one_of(known)}"


def _literal(details: ErrorDetails) -> str:
    choices = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
    shown = choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
    got = details["input"]
    return f"expected {shown}, got {_shown(got)}{suggestion(got, choices) if isinstance(got, str) else ''}"


def _text(details: ErrorDetails) -> str:
    got = details["input"]
    quoted = "" if isinstance(got, dict | list) or got is None else f'; write "{_shown(got)}" in quotes'
    return f"expected text, got {_shown(got)}{quoted}"


def _pattern(details: ErrorDetails) -> str:
    meaning = _PATTERNS.get(details["ctx"]["pattern"], f"text like {details['ctx']['pattern']}")
    return f"expected {meaning}, got {_shown(details['input'])}"


def _other(details: ErrorDetails) -> str:
    message = details["msg"]
    return message[0].lower() + message[1:]


def _number(details: ErrorDetails) -> str:
    word = "whole number" if details["type"].startswith("int") else "number"
    money = " of US dollars, the only supported currency" if str(details["loc"][-1]).endswith("_usd") else ""
    return f"expected a {word}{money}, got {_shown(details['input'])}"


_WORDS: Mapping[str, Callable[[ErrorDetails], str]] = {
    "extra_forbidden": _unknown_field,
    "missing": lambda _: "required field is missing",
    "literal_error": _literal,
    "string_type": _text,
    "string_pattern_mismatch": _pattern,
    "value_error": lambda details: str(details["ctx"]["error"]),
    "int_type": _number,
    "int_parsing": _number,
    "int_from_float": _number,
    "float_type": _number,
    "float_parsing": _number,
    "decimal_type": _number,
    "decimal_parsing": _number,
    "finite_number": lambda _: "expected a finite number",
}


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else str(value)[:60]


def _one_of(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"; known fields: {listed}" if listed else ""
