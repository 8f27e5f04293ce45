"""What the rules look at, and what they find."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.catalog.catalog import Catalog, load
from cloudgpu.catalog.software import Software, software

Version = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """Everything that is checked, as one value."""

    catalog: Catalog
    software: Software


@dataclass(frozen=True)
class Problem:
    """A row of the data, and what is wrong with it."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


Rule = Callable[[Known], Iterator[Problem]]


def known() -> Known:
    """What travels with this version of cloudgpu."""
    return Known(load(), software())


def version(text: str) -> Version:
    """`12.6.3` as numbers that can be compared.

    Raises:
        ValueError: It is no version.
    """
    return tuple(int(part) for part in text.split("."))


def runs_on(capability: str, code: str) -> bool:
    """Whether a GPU of a compute capability runs code that was built for another: the same major, no later minor."""
    gpu, built = version(capability), version(code)
    return gpu[0] == built[0] and gpu >= built
