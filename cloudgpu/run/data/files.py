"""Dataset files, which the caller lists and the nodes download, and the S3 service that hosts a bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.recipe.schema import Data


@dataclass(frozen=True)
class RemoteFile:
    """A file of a dataset: a temporary URL and the expected content.

    Attributes:
        url: Presigned URL. The URL is secret: it is sent only through standard input and never shown.
        sha256: Hexadecimal checksum, or None if it is unknown.
        etag: The source's identifier for the content; empty if unknown. Copying stops if the identifier changes.
        archived: S3 storage class or tier of an object that must be restored before it can be read; empty otherwise.
    """

    url: str = field(repr=False)
    relative: str
    size: int
    sha256: str | None
    etag: str = ""
    archived: str = ""


@dataclass(frozen=True)
class S3Service:
    """The S3 service that hosts a bucket.

    Attributes:
        region: Region of the bucket; empty for the nodes' region.
        endpoint: URL of an S3-compatible service; empty for AWS.
    """

    region: str = ""
    endpoint: str = ""


Files = Callable[["Data"], Sequence[RemoteFile]]
"""Function that lists a dataset's files with fresh URLs."""

Services = Callable[[str], S3Service]
"""Function that returns the S3 service for a bucket URL."""


def aws_s3_service(_url: str) -> S3Service:
    """Return AWS S3 in the region of the nodes."""
    return S3Service()
