"""Rewrite pydantic's validation errors in terms of the recipe file."""

from collections.abc import Callable, Iterable, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from cloudgpu.recipe.fields import names_at
from cloudgpu.recipe.name_suggestions import suggestion
from cloudgpu.recipe.problem import FieldPath, Problem

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


_ABSENT = object()


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


_PATTERNS = {
    r"^[a-z][a-z0-9-]{0,39}$": "up to 40 lowercase letters, digits and dashes, starting with a letter",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "the name of an environment variable (letters, digits, underscores)",
    r"^3\.[0-9]{1,3}$": 'a Python version in quotes, for example "3.11"',
}
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
