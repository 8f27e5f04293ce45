"""Values with units, as people write them in a recipe: `300GiB`, `90s`, `8h`."""

import re
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_SIZE = re.compile(r"^\s*(\d+)\s*(GiB|TiB)\s*$")
_PART = re.compile(r"(\d+)\s*(d|h|m|s)")
_DURATION = re.compile(r"^\s*(\d+\s*[dhms]\s*)+$")
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


class SizeGib(int):
    """A size in GiB; written `300GiB` or `2TiB`."""

    @classmethod
    def parse(cls, value: object) -> "SizeGib":
        """Read `300GiB`.

        Raises:
            ValueError: Not a size, no unit, or zero.
        """
        if isinstance(value, SizeGib):
            return value
        match = _SIZE.match(value) if isinstance(value, str) else None
        if match is None or int(match[1]) == 0:
            message = "expected a size with its unit, for instance 300GiB"
            raise ValueError(message)
        return cls(int(match[1]) * (1024 if match[2] == "TiB" else 1))

    def __str__(self) -> str:
        return f"{int(self)}GiB"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Tell pydantic to parse and render it as text."""
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Editors see a string with a pattern."""
        return {"type": "string", "pattern": r"^\d+\s*(GiB|TiB)$", "examples": ["300GiB"]}


class DurationS(int):
    """A duration in seconds; written `90s`, `20m`, `8h`, `1d12h`."""

    @classmethod
    def parse(cls, value: object) -> "DurationS":
        """Read `1h30m`.

        Raises:
            ValueError: Not a duration, no unit, or zero.
        """
        if isinstance(value, DurationS):
            return value
        if not isinstance(value, str) or not _DURATION.match(value):
            message = "expected a duration with its unit, for instance 90s, 20m or 8h"
            raise ValueError(message)
        seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(value))
        if seconds == 0:
            message = "expected a duration above zero, for instance 90s"
            raise ValueError(message)
        return cls(seconds)

    def __str__(self) -> str:
        rest, parts = int(self), []
        for unit, size in _SECONDS.items():
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts) or "0s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Tell pydantic to parse and render it as text."""
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Editors see a string with a pattern."""
        return {"type": "string", "pattern": r"^(\d+\s*[dhms]\s*)+$", "examples": ["90s", "8h"]}
