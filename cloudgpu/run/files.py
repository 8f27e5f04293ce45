"""The files of a dataset, as the caller lists them for the nodes, and the S3 services of buckets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.recipe.schema import Data


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset: a temporary URL and the expected content.

    Attributes:
        url: Presigned and therefore secret: it is sent through standard input only and never shown.
        sha256: Hexadecimal, or None if there is no checksum.
        etag: The source's identifier of the content. A copy that finds another one stops. Empty if unknown.
    """

    url: str = field(repr=False)
    relative: str
    size: int
    sha256: str | None
    etag: str = ""


@dataclass(frozen=True)
class S3Service:
    """The S3 service of a bucket.

    Attributes:
        region: Region of the bucket; empty for the region of the nodes.
        endpoint: URL of an S3-compatible service; empty for AWS.
    """

    region: str = ""
    endpoint: str = ""


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Lists a dataset's files with fresh addresses."""

Services = Callable[[str], S3Service]
"""Which service has the bucket of an address."""


def aws_itself(_url: str) -> S3Service:
    """Return AWS in the region of the nodes."""
    return S3Service()
