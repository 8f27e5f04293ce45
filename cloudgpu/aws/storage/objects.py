"""Objects in S3: list an `s3://` URL, presign, and upload a directory."""

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from cloudgpu.aws.session.errors import UNREACHABLE, answered, is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, CloudError, CloudGpuError, StateError
from cloudgpu.files import open_for_reading
from cloudgpu.recipe.file_names import unusable
from cloudgpu.text import printable

_AT_ONCE = 8
_SHA256 = "sha256"
"""Metadata key that holds an object's checksum: an ETag is none for objects that were sent in parts."""
_REGION_HEADER = "x-amz-bucket-region"
_LONGEST_LINK_S = 7 * 24 * 3600
"""S3's own limit."""
_MOST_OBJECTS = 2_000_000
"""Each becomes a file of its own on every node; beyond that, copying them takes longer than any mount."""
_MOST_EMPTY_PAGES = 1000
"""In a row: a service that goes on with nothing to say does not come to an end."""
_LARGEST_SIZE = 2**63 - 1
_SHOWN = 100
_OF_A_PAGE = frozenset({"IsTruncated", "Name", "KeyCount", "MaxKeys"})
"""S3 says these of every listing, an empty one too."""


@dataclass(frozen=True)
class ObjectInfo:
    """An S3 object. `relative` is its path below the listed URL."""

    key: str
    relative: str
    size: int
    etag: str


@dataclass(frozen=True)
class Uploaded:
    """The result of `put_files`: objects and bytes sent, and objects that already existed."""

    sent: int
    sent_bytes: int
    reused: int


@dataclass(frozen=True)
class Address:
    """A bucket and a prefix without slashes at its ends; empty for the whole bucket."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "Address":
        """Read `s3://bucket/prefix`.

        Raises:
            BadRequestError: It is no such address.
        """
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not bucket:
            message = f"{url!r} is not an S3 URL"
            raise BadRequestError(message, code="InvalidURI", hint="write s3://BUCKET/PREFIX")
        return cls(bucket, prefix.strip("/"))


def listing(clients: Clients, url: str) -> tuple[ObjectInfo, ...]:
    """Return the object at a URL, or all objects below it, sorted by key and without folder markers.

    Raises:
        BadRequestError: The bucket does not exist, the URL has no objects (the hint names the nearest ones), or the
            keys cannot be file names on a node.
        CloudError: The response is malformed or endless.
        AuthError: The bucket may not be read.
    """
    address = Address.parse(url)
    try:
        with answered(f"listing {url}"):
            found = _bounded(url, below(clients.client("s3"), address))
    except CloudGpuError as err:
        if is_gone(err):
            raise _no_bucket(clients, address) from err
        raise
    if not found:
        raise _nothing(clients, address, url)
    wrong = unusable(item.relative for item in found)
    if wrong is not None:
        message = f"{url} holds {printable(wrong[0])[:_SHOWN]!r}, which no node can write: {wrong[1]}"
        raise BadRequestError(message, code="KeyName", hint="rename the object, or name a prefix without it")
    return found


def _bounded(url: str, found: Iterator[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    kept = tuple(islice(found, _MOST_OBJECTS + 1))
    if len(kept) > _MOST_OBJECTS:
        message = f"more than {_MOST_OBJECTS} objects are under {url}"
        raise BadRequestError(message, code="TooMany", hint="pack them into archives, or set `mode: mount`")
    return kept


def bucket_region(clients: Clients, url: str) -> str:
    """Return the region of a URL's bucket, or that of the clients if S3 does not report it."""
    try:
        with answered(f"looking at {url}"):
            return region_of_bucket(clients.client("s3"), Address.parse(url)) or clients.region
    except CloudGpuError:
        return clients.region  # whoever lists it is told why


def region_of_bucket(s3: Any, address: Address) -> str:  # noqa: ANN401
    """Return the region of a bucket; empty if S3 does not report it."""
    with answered(f"looking at bucket {address.bucket}"):
        answer = s3.head_bucket(Bucket=address.bucket)
    told = answer.get("BucketRegion") or answer["ResponseMetadata"].get("HTTPHeaders", {}).get(_REGION_HEADER)
    return str(told or "")


def check_readable(clients: Clients, url: str, key: str) -> None:
    """Read from one object, because permission to list a bucket does not imply permission to read it.

    Raises:
        AuthError: The object may not be read.
        CloudError: AWS refused or cannot be reached.
    """
    address = Address.parse(url)
    with typed(f"reading s3://{address.bucket}/{key}"):
        clients.client("s3").head_object(Bucket=address.bucket, Key=key)


def presigned(clients: Clients, url: str, keys: Iterable[str], expires_s: int) -> dict[str, str]:
    """Return a presigned URL for each key, valid for `expires_s` seconds. Makes no calls.

    Raises:
        BadRequestError: The URLs would have to be valid for more than 7 days, the limit of S3.
    """
    if expires_s > _LONGEST_LINK_S:
        message = f"presigned URLs are valid for at most {_LONGEST_LINK_S} s, but {expires_s} s were requested"
        raise BadRequestError(message, code="AuthorizationQueryParametersError", hint="request a shorter validity")
    address, s3 = Address.parse(url), clients.client("s3")
    with typed(f"signing links to {url}"):
        return {
            key: s3.generate_presigned_url(
                "get_object", Params={"Bucket": address.bucket, "Key": key}, ExpiresIn=expires_s
            )
            for key in keys
        }


def put_files(clients: Clients, url: str, directory: Path) -> Uploaded:
    """Send every file of a directory to the address; one that is there with the same content is not sent again.

    Raises:
        StateError: A file cannot be read.
        CloudError: AWS refused or cannot be reached.
    """
    address, s3 = Address.parse(url), clients.client("s3")
    _ensure_bucket(clients, address.bucket)
    with answered(f"listing {url}"):
        sizes = {item.key: item.size for item in below(s3, address)}
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        sent = list(workers.map(lambda path: _put(s3, address, path, directory, sizes), files))
    return Uploaded(
        sent=sum(size is not None for size in sent),
        sent_bytes=sum(size or 0 for size in sent),
        reused=sum(size is None for size in sent),
    )


def below(s3: Any, address: Address) -> Iterator[ObjectInfo]:  # noqa: ANN401
    """Yield the object `data/set` and everything under `data/set/`, but not `data/set-2`."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.prefix)
    under = f"{address.prefix}/" if address.prefix else ""
    for page in ending(pages, "Contents"):
        for item in map(_row, page.get("Contents") or ()):
            key = item.key
            if key.endswith("/") or not (key == address.prefix or key.startswith(under)):
                continue
            relative = key[len(under) :] if key.startswith(under) else key.rpartition("/")[2]
            yield replace(item, relative=relative)


def ending(pages: Iterable[Mapping[str, Any]], *kinds: str) -> Iterator[Mapping[str, Any]]:
    """Yield the pages of a listing of S3, which have to be pages and to come to an end.

    Raises:
        CloudError: One is no page of a listing, or page after page holds nothing.
    """
    empty_ones = 0
    for page in pages:
        told = any(page.get(kind) for kind in kinds)
        if not told and not _OF_A_PAGE & page.keys():
            # What a proxy or a log-in page sends parses as an answer without content: never as "nothing is there".
            raise _no_listing("what came is no listing")
        empty_ones = 0 if told else empty_ones + 1
        if empty_ones > _MOST_EMPTY_PAGES:
            raise _no_listing("it does not end")
        yield page


def _row(row: Mapping[str, Any]) -> ObjectInfo:
    key, size = row.get("Key"), row.get("Size")
    if not key or size is None or not 0 <= size <= _LARGEST_SIZE:
        raise _no_listing("an object has no name or no size")
    return ObjectInfo(str(key), "", int(size), str(row.get("ETag") or "").strip('"'))


def _no_listing(why: str) -> CloudError:
    message = f"the listing of a bucket is malformed: {why}"
    return CloudError(
        message, code=UNREACHABLE, hint="S3 or a proxy returned an invalid response; run the command again"
    )


def _put(s3: Any, address: Address, path: Path, directory: Path, sizes: Mapping[str, int]) -> int | None:  # noqa: ANN401
    """Upload a file and return the bytes sent, or None if the object already exists."""
    relative = path.relative_to(directory).as_posix()
    key = f"{address.prefix}/{relative}" if address.prefix else relative
    try:
        size, digest = path.stat().st_size, _digest(path)
    except OSError as err:
        message = f"cannot read {path}: {err.strerror}"
        raise StateError(message, hint="make it readable, or leave it out") from err
    with answered(f"sending {path} to s3://{address.bucket}/{key}"):
        if sizes.get(key) == size:
            there = s3.head_object(Bucket=address.bucket, Key=key)["Metadata"].get(_SHA256)
            if there == digest:
                return None
        s3.upload_file(str(path), address.bucket, key, ExtraArgs={"Metadata": {_SHA256: digest}})
    return size


def _digest(path: Path) -> str:
    with open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ensure_bucket(clients: Clients, bucket: str) -> None:
    s3 = clients.client("s3")
    try:
        with typed(f"looking at bucket {bucket}"):
            s3.head_bucket(Bucket=bucket)
    except CloudGpuError as err:
        if not is_gone(err):
            raise
    else:
        return
    # The oldest region is the default and may not be named.
    where = {} if clients.region == "us-east-1" else {"LocationConstraint": clients.region}
    options = {"CreateBucketConfiguration": where} if where else {}
    with typed(f"making bucket {bucket}"):
        s3.create_bucket(Bucket=bucket, **options)


def _no_bucket(clients: Clients, address: Address) -> BadRequestError:
    """Return the error for a missing bucket, with similar names if the caller may list buckets."""
    try:
        with answered("listing buckets"):
            names = [bucket["Name"] for bucket in clients.client("s3").list_buckets().get("Buckets") or ()]
    except CloudGpuError:
        names = []
    message = f"there is no bucket {address.bucket}"
    return BadRequestError(message, code="NoSuchBucket", hint=_nearest(address.bucket, names, "s3://{}"))


def _nothing(clients: Clients, address: Address, url: str) -> BadRequestError:
    parent, _, name = address.prefix.rpartition("/")
    below = f"{parent}/" if parent else ""
    with answered(f"listing s3://{address.bucket}/{below}"):
        page = clients.client("s3").list_objects_v2(Bucket=address.bucket, Prefix=below, Delimiter="/")
        folders = [prefix["Prefix"].rstrip("/") for prefix in page.get("CommonPrefixes") or ()]
        names = [
            name.rpartition("/")[2] for name in (*folders, *(entry["Key"] for entry in page.get("Contents") or ()))
        ]
    message = f"there are no objects under {url}"
    return BadRequestError(message, code="NoSuchKey", hint=_nearest(name, names, f"s3://{address.bucket}/{below}{{}}"))


def _nearest(wanted: str, names: Sequence[str], form: str) -> str:
    near = difflib.get_close_matches(wanted, names, n=1)
    return f"did you mean {form.format(near[0])}?" if near else "check the address and the region"
