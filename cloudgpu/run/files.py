"""A dataset's files, as the caller lists them for the nodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.recipe.schema import Data


@dataclass(frozen=True)
class RemoteFile:
    """One file of a dataset: where it can be had for a while, and what it must be.

    Attributes:
        url: Presigned: whoever has it can read the file, so it travels by standard input only and is never shown.
        sha256: Hexadecimal, or None when nothing vouches for the content.
    """

    url: str = field(repr=False)
    relative: str
    size: int
    sha256: str | None


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Lists a dataset's files with fresh addresses."""
