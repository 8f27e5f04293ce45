"""A dataset's files, as the caller lists them for the nodes, and the services that have its buckets."""

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
        etag: Version of the content at the source; a copy that meets a different one stops. Empty if unknown.
    """

    url: str = field(repr=False)
    relative: str
    size: int
    sha256: str | None
    etag: str = ""


@dataclass(frozen=True)
class Service:
    """Where a bucket is to be asked for.

    Attributes:
        region: Of the bucket; empty means that of the nodes.
        endpoint: Address of a service that is not AWS's own; empty for AWS.
    """

    region: str = ""
    endpoint: str = ""


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Lists a dataset's files with fresh addresses."""

Services = Callable[[str], Service]
"""Which service has the bucket of an address."""


def aws_itself(_url: str) -> Service:
    """AWS, in the region of the nodes."""
    return Service()
