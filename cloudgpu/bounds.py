"""Parse numbers, durations, sizes, amounts of money, times and text from untrusted sources into bounded values.

The values come from users, files, tags, nodes or AWS. Each type of value has one parser and one range, so that later
arithmetic cannot overflow: bounded times can be subtracted, and bounded durations added to them. Every parser raises
ValueError with a message that states what was expected.

Only ASCII digits are accepted. `int` also accepts `1_000`, `+5`, ` 5 ` and the digits of other scripts, but the tools
to which cloudgpu passes the value reject these forms.
"""

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2100, 1, 1, tzinfo=UTC)
"""Valid times range from EARLIEST, before any cloud existed, up to but not including LATEST."""
MAX_DURATION_S: Final = 366 * 86400
"""A leap year in seconds: about twice the longest Capacity Block that AWS offers."""
MAX_USD: Final = Decimal(10) ** 9
"""More than any cluster costs, but small enough that nano-dollars times the seconds of a year fit in 128 bits."""
MAX_SIZE_GIB: Final = 1 << 20
"""One pebibyte: larger than any FSx for Lustre file system that AWS provides without a contract."""
MAX_VOLUME_GIB: Final = 64 * 1024
"""Maximum size of a gp3 EBS volume."""
MAX_COUNT: Final = 2**53
"""Largest integer that a JSON parser reads exactly even if it stores numbers as doubles."""
MAX_PORT: Final = 65535
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN minus the terminating NUL; `execve` rejects a longer argument or NAME=VALUE string."""

_MAX_FIGURE: Final = Decimal(10) ** 18
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_FIGURE: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_TAG_MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"
_DURATION: Final = re.compile(r"(?:[0-9]{1,12}[ \t]*[dhms][ \t]*)+")
_PART: Final = re.compile(r"([0-9]+)[ \t]*([dhms])")
_UNIT_S: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZE: Final = re.compile(r"([0-9]{1,12})[ \t]*(GiB|TiB|GB|TB)")
_UNIT_BYTES: Final = {"GiB": 2**30, "TiB": 2**40, "GB": 10**9, "TB": 10**12}
_MAX_NAME: Final = 60
_SHOWN: Final = 60


def parse_whole_number(text: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """Read a whole number from text."""
    if _WHOLE.fullmatch(text) is None:
        raise _expected("a whole number", text)
    return _within(int(text), least, most)


def checked_count(value: object, least: int = 0, most: int = MAX_COUNT) -> int:
    """Check that a value from a JSON or YAML document is a whole number in range, and return it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _expected("a whole number", value)
    return _within(value, least, most)


def port(text: str) -> int:
    """Read a TCP port number."""
    return parse_whole_number(text, 1, MAX_PORT)


def parse_decimal(value: object) -> Decimal:
    """Read a decimal number from text, an int, a float or a Decimal."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_COUNT:
        raise _expected("a number", value)  # `str` raises an unhelpful error for very long integers
    text = str(value) if isinstance(value, int | float | Decimal) and not isinstance(value, bool) else value
    if not isinstance(text, str) or _FIGURE.fullmatch(text) is None or abs(Decimal(text)) > _MAX_FIGURE:
        raise _expected("a number", value)
    return Decimal(text)


def usd(value: object) -> Decimal:
    """Read an amount of US dollars, from 0 to a billion."""
    amount = _dollars(value)
    if not 0 <= amount <= MAX_USD:
        raise _expected(f"an amount from 0 to {MAX_USD:,} US dollars", value)
    return amount


def positive_usd(value: object) -> Decimal:
    """Read an amount of US dollars above zero."""
    amount = _dollars(value)
    if amount <= 0:
        raise _expected("more than 0", value)
    return usd(amount)


def parse_time(text: object) -> datetime:
    """Read an ISO 8601 date or time and convert it to UTC. A time with no UTC offset is taken as UTC."""
    if not isinstance(text, str) or _MOMENT.fullmatch(text) is None:
        raise _expected("a time like 2026-11-21T18:00Z", text)
    try:
        parsed = datetime.fromisoformat(text)
        return to_utc(parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        message = f"expected a time from 2000 to 2099, got {_shown(text)}"
        raise ValueError(message) from None


def parse_epoch(text: str) -> datetime:
    """Read a Unix timestamp in seconds and return it as UTC."""
    seconds = parse_whole_number(text, int(EARLIEST.timestamp()), int(LATEST.timestamp()) - 1)
    return datetime.fromtimestamp(seconds, UTC)


def to_utc(at: datetime) -> datetime:
    """Convert a timezone-aware time to UTC."""
    # Compare before converting: near the limits of `datetime` the conversion itself overflows.
    if not EARLIEST <= at < LATEST:
        message = f"expected a time from 2000 to 2099, got {at.isoformat()}"
        raise ValueError(message)
    return at.astimezone(UTC)


def parse_tag_time(text: str) -> datetime:
    """Read the time in a tag, which must have the form that cloudgpu writes: `2026-11-21T18:00:00Z`."""
    parsed = parse_time(text)
    if parsed.strftime(_TAG_MOMENT) != text:
        raise _expected("a time like 2026-11-21T18:00:00Z", text)
    return parsed


def parse_date(text: object) -> date:
    """Read a date."""
    if not isinstance(text, str) or _DATE.fullmatch(text) is None:
        raise _expected("a date like 2026-11-21", text)
    return parse_time(text).date()


def duration_s(text: object, most_s: int = MAX_DURATION_S) -> int:
    """Read a duration such as `90s`, `20m`, `8h` or `1d12h` and return it in seconds."""
    stripped = text.strip(" \t") if isinstance(text, str) else ""
    if _DURATION.fullmatch(stripped) is None:
        message = "expected a duration with its unit, for example 90s, 20m or 8h"
        raise ValueError(message)
    seconds = sum(int(number) * _UNIT_S[unit] for number, unit in _PART.findall(stripped))
    if not seconds:
        message = "expected a duration above zero, for example 90s"
        raise ValueError(message)
    if seconds > most_s:
        message = f"expected a duration of at most {most_s // 86400}d, got {_shown(stripped)}"
        raise ValueError(message)
    return seconds


def parse_age(text: str, now: datetime) -> datetime:
    """Return the time that precedes `now` by a duration such as `7d`."""
    longest_s = int((now - EARLIEST).total_seconds())
    return now - timedelta(seconds=duration_s(text, longest_s))


def parse_time_or_age(text: str, now: datetime) -> datetime:
    """Read a date, a time such as `2026-11-21T18:00Z`, or a duration before `now` such as `7d` or `1h30m`."""
    return parse_age(text, now) if _DURATION.fullmatch(text) else parse_time(text)


def size_gib(text: object, most: int = MAX_SIZE_GIB, *, round_down: bool = False) -> int:
    """Read a size such as `300GiB`, `2TiB` or `300GB` (10**9 bytes) and return it in GiB.

    A size in GB or TB is rounded up, so that what it describes fits; with `round_down` it is rounded down, but not to
    zero.
    """
    match = _SIZE.fullmatch(text.strip(" \t")) if isinstance(text, str) else None
    size_bytes = int(match[1]) * _UNIT_BYTES[match[2]] if match else 0
    gib = max(1, size_bytes // 2**30) if round_down and size_bytes else -(-size_bytes // 2**30)
    if not gib:
        message = "expected a size with its unit (GiB, TiB, GB or TB), for example 300GiB"
        raise ValueError(message)
    if gib > most:
        message = f"expected a size of at most {most}GiB, got {_shown(text)}"
        raise ValueError(message)
    return gib


def text_fault(text: str, *, lines: bool = False) -> str:
    """Explain why text cannot be used in a name, path or argument. Return an empty string if the text is valid.

    Args:
        text: Any text.
        lines: Allow newlines and tabs, as in commands and the values of variables.
    """
    if text.isprintable():
        return ""
    for position, char in enumerate(text, 1):
        if "\ud800" <= char <= "\udfff":
            return f"character {position} is half of a surrogate pair (U+{ord(char):04X}), which is not valid text"
        if _is_control(char) and not (lines and char in "\n\t"):
            return f"character {position} is the control character U+{ord(char):04X}"
    return ""


def value_fault(text: str) -> str:
    """Explain why text cannot be the value of an environment variable. Return an empty string if the text is valid.

    All control characters except NUL are valid, because a secret may contain, for example, Windows line endings.
    """
    if "\0" in text:
        return "the value contains a NUL character, at which the operating system would truncate it"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "the value is not UTF-8 text"
    return ""


def is_file_name(text: str) -> bool:
    """Return True if cloudgpu can use text as a file name. Records in the state home always have such names.

    The maximum length leaves room below NAME_MAX for the suffixes of temporary files.
    """
    return text not in ("", ".", "..") and "/" not in text and len(text) <= _MAX_NAME and not text_fault(text)


def _is_control(char: str) -> bool:
    """Return True for C0, DEL and C1 controls, and for the two separators that some parsers treat as line breaks."""
    return char < " " or "\x7f" <= char <= "\x9f" or char in "\u2028\u2029"


def _dollars(value: object) -> Decimal:
    try:
        return parse_decimal(value)
    except ValueError:
        raise _expected("a number of US dollars, the only supported currency", value) from None


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        message = f"expected a whole number from {least} to {most}, got {_shown(value)}"
        raise ValueError(message)
    return value


def _expected(what: str, got: object) -> ValueError:
    return ValueError(f"expected {what}, got {_shown(got)}")


def _shown(value: object) -> str:
    """Return a value as shown in messages: escaped, and truncated if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_COUNT:
        return "a number that is too large"  # str() of a huge int raises
    plain = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return plain if len(plain) <= _SHOWN else f"{plain[:_SHOWN]}..."
