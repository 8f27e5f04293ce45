"""Base class of all recipe sections, and field types with units: `300GiB`, `90s`, `8h`."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from cloudgpu import bounds

_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
Usd = Annotated[Decimal, BeforeValidator(bounds.usd), WithJsonSchema({"type": "number", "minimum": 0})]
"""An amount in USD, from 0 to a billion."""
PositiveUsd = Annotated[
    Decimal, BeforeValidator(bounds.positive_usd), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,39}$")]


class SizeGib(int):
    """A size in GiB, written `300GiB`, `2TiB` or, in units of 10**9 bytes, `300GB`."""

    @classmethod
    def parse(cls, value: object) -> "SizeGib":
        """Parse a size such as `300GiB`."""
        return value if isinstance(value, SizeGib) else cls(bounds.size_gib(value))

    def __str__(self) -> str:
        return f"{int(self)}GiB"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Make pydantic parse and render the value as text."""
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the value as a string with a pattern, for editors."""
        return {"type": "string", "pattern": r"^[0-9]+\s*(GiB|TiB|GB|TB)$", "examples": ["300GiB"]}


class DurationS(int):
    """A duration in seconds, written `90s`, `20m`, `8h` or `1d12h`."""

    @classmethod
    def parse(cls, value: object) -> "DurationS":
        """Parse a duration such as `1h30m`."""
        return value if isinstance(value, DurationS) else cls(bounds.duration_s(value))

    def __str__(self) -> str:
        rest, parts = int(self), []
        for unit, size in _SECONDS.items():
            count, rest = divmod(rest, size)
            if count:
                parts.append(f"{count}{unit}")
        return "".join(parts) or "0s"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:  # noqa: ANN401
        """Make pydantic parse and render the value as text."""
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=core_schema.to_string_ser_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Describe the value as a string with a pattern, for editors."""
        return {"type": "string", "pattern": r"^([0-9]+\s*[dhms]\s*)+$", "examples": ["90s", "8h"]}


def _rounded_down(value: object) -> SizeGib:
    return value if isinstance(value, SizeGib) else SizeGib(bounds.size_gib(value, round_down=True))


def _volume(size: SizeGib) -> SizeGib:
    if size > bounds.MAX_VOLUME_GIB:
        message = f"expected at most {bounds.MAX_VOLUME_GIB}GiB, the largest gp3 volume, got {size}"
        raise ValueError(message)
    return size


def _real(value: object) -> float:
    return float(bounds.parse_decimal(value))


def _positive(value: Decimal) -> Decimal:
    if value <= 0:
        message = f"expected more than 0, got {value}"
        raise ValueError(message)
    return value


VolumeGib = Annotated[SizeGib, AfterValidator(_volume)]
"""A size that an EBS volume can have."""
MemoryGib = Annotated[SizeGib, BeforeValidator(_rounded_down)]
"""A size of memory. GB are rounded down to GiB: a GPU sold with 24 GB has 22.35 GiB."""
Figure = Annotated[float, BeforeValidator(_real)]
"""A number with a magnitude of at most 10**18. Booleans are rejected."""
Amount = Annotated[
    Decimal,
    BeforeValidator(bounds.parse_decimal),
    AfterValidator(_positive),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
]


class Section(BaseModel):
    """Base class of every section. Sections are immutable and reject unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )
