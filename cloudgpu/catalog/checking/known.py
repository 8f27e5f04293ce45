"""The input and the results of the catalog checks, and helpers that compare versions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cloudgpu.catalog.catalog import Catalog, load
from cloudgpu.catalog.compatibility import Software, software

Version = tuple[int, ...]


@dataclass(frozen=True)
class CatalogData:
    """The input of every check: the catalog and the software data."""

    catalog: Catalog
    software: Software


@dataclass(frozen=True)
class DataProblem:
    """An inconsistency in one row of the data. `where` identifies the row."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


Rule = Callable[[CatalogData], Iterator[DataProblem]]


def load_bundled_data() -> CatalogData:
    """Return the catalog and the software data bundled with this version of cloudgpu."""
    return CatalogData(load(), software())


def parse_version(text: str) -> Version:
    """Parse a version such as `12.6.3` into comparable numbers."""
    return tuple(int(part) for part in text.split("."))


def runs_on(capability: str, code: str) -> bool:
    """Return True if a GPU with compute capability `capability` runs code that was built for `code`.

    The major versions must be equal, and the minor version of `code` must not be higher.
    """
    gpu, built = parse_version(capability), parse_version(code)
    return gpu[0] == built[0] and gpu >= built
