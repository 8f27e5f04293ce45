"""Schedule expressions of EventBridge Scheduler: `at`, `rate` and `cron`."""

import re
from datetime import datetime
from typing import Final

from cloudgpu import bounds

_AT: Final = re.compile(r"at\((\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})\)")
_RATE: Final = re.compile(r"rate\([1-9]\d* (minute|hour|day)s?\)")
_CRON: Final = re.compile(r"cron\((.*)\)")
_ANY: Final = "?"
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS: Final = (
    (0, 59, (), ""),
    (0, 23, (), ""),
    (1, 31, (), "LW"),
    (1, 12, _MONTHS, ""),
    (1, 7, _DAYS, "L"),
    (1970, 2199, (), ""),
)
"""Lowest and highest number of each field of a cron expression, names for the numbers, and letters that it allows."""
_DAY_OF_MONTH, _DAY_OF_WEEK = 2, 4


def is_valid_expression(expression: str) -> bool:
    """Return True if EventBridge Scheduler accepts the expression."""
    at, cron = _AT.fullmatch(expression), _CRON.fullmatch(expression)
    if at is not None:
        return _is_time(at[1])
    return _is_cron(cron[1]) if cron is not None else bool(_RATE.fullmatch(expression))


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_cron(text: str) -> bool:
    """Return True for six valid fields of which exactly one of the two for days is `?`."""
    fields = text.split(" ")
    if len(fields) != len(_FIELDS):
        return False
    if [fields[_DAY_OF_MONTH], fields[_DAY_OF_WEEK]].count(_ANY) != 1:
        return False
    return all(
        (field == _ANY and index in (_DAY_OF_MONTH, _DAY_OF_WEEK)) or _is_field(field, *_FIELDS[index])
        for index, field in enumerate(fields)
    )


def _is_field(field: str, low: int, high: int, names: tuple[str, ...], letters: str) -> bool:
    return all(_is_item(item, low, high, names, letters) for item in field.split(","))


def _is_item(item: str, low: int, high: int, names: tuple[str, ...], letters: str) -> bool:
    """Return True for `*`, a value or a range, each optionally with a step, or for a form with letters such as `3L`."""
    values, slash, step = item.partition("/")
    if slash and not re.fullmatch(r"[0-9]{1,9}", step):
        return False
    if values == "*":
        return True
    if letters and re.fullmatch(rf"\d{{0,2}}[{letters}]|[1-7]#[1-5]", values):
        return True
    ends = values.split("-")
    return len(ends) in (1, 2) and all(_is_value(end, low, high, names) for end in ends)


def _is_value(text: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    if text.upper() in names:
        return True
    try:
        bounds.parse_whole_number(text, low, high)
    except ValueError:
        return False
    return True
