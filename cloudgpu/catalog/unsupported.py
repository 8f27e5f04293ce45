"""AWS partitions and hardware that cloudgpu cannot use, and types that a new account may be unable to launch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cloudgpu.catalog.catalog import read_data_file

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "cn-": "AWS China (partition aws-cn)",
    "us-gov-": "AWS GovCloud (partition aws-us-gov)",
    "us-iso": "an isolated partition of AWS",
    "eu-isoe-": "an isolated partition of AWS",
    "eusc-": "the AWS European Sovereign Cloud (partition aws-eusc)",
}
"""Beginning of the region names -> name of the partition."""


def unsupported_partition(region: str) -> str:
    """Return a sentence that names the partition of a region if cloudgpu does not support it, or an empty text.

    The prices, the machine images and the published IAM policies are those of the partition `aws`.
    """
    name = next((name for beginning, name in _UNSUPPORTED.items() if region.startswith(beginning)), "")
    return f"region {region} is in {name}, which cloudgpu does not support" if name else ""


@dataclass(frozen=True)
class Unsupported:
    """The reason why an instance type or a GPU cannot be used, or may be refused, and the nearest alternative."""

    name: str
    why: str
    """Predicate of a sentence about the name, such as `has a part of an L4, and ...`."""
    replacement: str
    """Name of an instance type for a type, and of a GPU for a GPU."""
    source: str

    def __str__(self) -> str:
        return (
            f"{self.name} {self.why}; the nearest {'type' if '.' in self.replacement else 'GPU'} is {self.replacement}"
        )


def unsupported_type(name: str) -> Unsupported | None:
    """Return why cloudgpu cannot use an EC2 instance type that the catalog omits; None for any other text."""
    return _by_prefix(name, _content()["types"]) if "." in name else None


def unsupported_gpu(model: str) -> Unsupported | None:
    """Return why cloudgpu cannot use a GPU of EC2 that the catalog omits; None for any other text."""
    row = next((row for row in _content()["gpus"] if row["name"].lower() == model.lower()), None)
    return None if row is None else Unsupported(row["name"], row["why"], row["replacement"], row["source"])


def doubtful_type(name: str) -> Unsupported | None:
    """Return why a new account may not be able to launch an instance type; None if nothing is known against it."""
    return _by_prefix(name, _content()["doubtful"])


def every_entry() -> tuple[Unsupported, ...]:
    """Return all entries, with the prefix of types as their name."""
    content = _content()
    rows = [*content["types"], *content["gpus"], *content["doubtful"]]
    return tuple(
        Unsupported(row.get("prefix") or row["name"], row["why"], row["replacement"], row["source"]) for row in rows
    )


def _by_prefix(name: str, rows: Iterable[Mapping[str, str]]) -> Unsupported | None:
    row = next((row for row in rows if name.startswith(row["prefix"])), None)
    return None if row is None else Unsupported(name, row["why"], row["replacement"], row["source"])


@cache
def _content() -> dict[str, Any]:
    return read_data_file("unsupported_types.json")
