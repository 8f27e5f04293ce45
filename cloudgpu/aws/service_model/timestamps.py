"""Parse the timestamps of responses strictly; botocore's own parser also accepts formats that AWS never sends."""

import re
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

_ISO_8601: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)", re.ASCII)


def parse_timestamp(value: Any, style: str) -> Any:  # noqa: ANN401
    """Return the time that a text denotes in the format `iso8601`, `rfc822` or `unixTimestamp`.

    If it is not in that format, return it unchanged.
    """
    try:
        if style == "rfc822":
            return parsedate_to_datetime(value)
        if style == "unixTimestamp":
            return datetime.fromtimestamp(float(value)).astimezone()
        return datetime.fromisoformat(value) if _ISO_8601.fullmatch(value) else value
    except (ValueError, TypeError, OverflowError, OSError):
        return value
