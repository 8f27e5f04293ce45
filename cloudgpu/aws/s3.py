"""S3: tags, size and contents of a bucket; list an `s3://` URL, presign URLs, and upload a directory."""

import difflib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from cloudgpu.aws.ec2.tagging import tags_to_dict
from cloudgpu.aws.session.errors import UNREACHABLE, convert_errors, convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, CloudError, CloudGpuError, StateError
from cloudgpu.files import open_for_reading
from cloudgpu.recipe.data_rules import find_unusable_name
from cloudgpu.text import printable
from cloudgpu.workers import Workers

_AT_ONCE = 8
_SHA256 = "sha256"
"""Metadata key for an object's checksum. The ETag of a multipart upload is not a checksum."""
_REGION_HEADER = "x-amz-bucket-region"
_LONGEST_LINK_S = 7 * 24 * 3600
"""S3's limit on the validity of a presigned URL."""
_MOST_OBJECTS = 2_000_000
"""Maximum number of objects that can be copied to a node as files. For more objects, mounting the bucket is faster."""
_MOST_EMPTY_PAGES = 1000
"""Maximum number of consecutive empty pages. A listing with more empty pages is considered endless."""
_ARCHIVE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects cannot be read until they are restored. GLACIER_IR can be read at any time."""
_TIERED = "INTELLIGENT_TIERING"
"""Storage class that may move objects to an archive tier, which only HeadObject reports."""
_MOST_HEADS = 1000
"""Maximum number of objects per dataset whose restore state is read. Objects are archived and restored in bulk."""
_RESTORED = 'ongoing-request="false"'
_LARGEST_SIZE = 2**63 - 1
_SHOWN = 100
_PAGE_KEYS = frozenset({"IsTruncated", "Name", "KeyCount", "MaxKeys"})
"""Keys that identify a listing page. S3 includes them even if the listing is empty."""
_DELETED_AT_ONCE: Final = 1000
"""Maximum number of objects in one delete call."""
_COUNTED: Final = 10_000
"""Number of objects after which `bucket_size` gives up."""
_LISTED: Final = ("Versions", "DeleteMarkers")
_NO_TAGS: Final = "NoSuchTagSet"


@dataclass(frozen=True)
class ObjectInfo:
    """An S3 object. `relative` is its path below the listed URL."""

    key: str
    relative: str
    size: int
    etag: str
    storage_class: str = "STANDARD"


@dataclass(frozen=True)
class UploadResult:
    """The result of `put_files`: how many objects and bytes were uploaded, and how many objects already existed."""

    sent: int
    sent_bytes: int
    reused: int


@dataclass(frozen=True)
class S3Location:
    """Location in S3: a bucket, and a prefix without leading or trailing slashes (empty for the whole bucket)."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> "S3Location":
        """Parse `s3://bucket/prefix`."""
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not bucket:
            message = f"{url!r} is not an S3 URL"
            raise BadRequestError(message, code="InvalidURI", hint="write s3://BUCKET/PREFIX")
        return cls(bucket, prefix.strip("/"))


def list_objects(clients: Clients, url: str) -> tuple[ObjectInfo, ...]:
    """Return the object at a URL and all objects below the URL, sorted by key and without folder markers."""
    address = S3Location.parse(url)
    try:
        with convert_response_errors(f"listing {url}"):
            objects = _bounded(url, below(clients.client("s3"), address))
    except CloudGpuError as err:
        if is_gone(err):
            raise _no_bucket(clients, address) from err
        raise
    if not objects:
        raise _no_objects(clients, address, url)
    unusable_name = find_unusable_name(item.relative for item in objects)
    if unusable_name is not None:
        message = (
            f"{url} contains {printable(unusable_name[0])[:_SHOWN]!r}, which cannot be a file name: {unusable_name[1]}"
        )
        raise BadRequestError(message, code="KeyName", hint="rename the object, or use a prefix that excludes it")
    return objects


def _bounded(url: str, objects: Iterator[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    listed = tuple(islice(objects, _MOST_OBJECTS + 1))
    if len(listed) > _MOST_OBJECTS:
        message = f"there are more than {_MOST_OBJECTS} objects under {url}"
        raise BadRequestError(message, code="TooMany", hint="pack the objects into archives, or set `mode: mount`")
    return listed


def bucket_region(clients: Clients, url: str) -> str:
    """Return the region of a URL's bucket, or the region of the clients if S3 does not report it."""
    try:
        with convert_response_errors(f"reading the region of {url}"):
            return look_up_bucket_region(clients.client("s3"), S3Location.parse(url)) or clients.region
    except CloudGpuError:
        return clients.region  # listing the bucket will report the error


def look_up_bucket_region(s3: Any, address: S3Location) -> str:  # noqa: ANN401
    """Return the region of a bucket, or an empty string if S3 does not report it."""
    with convert_response_errors(f"reading the region of bucket {address.bucket}"):
        response = s3.head_bucket(Bucket=address.bucket)
    region = response.get("BucketRegion") or response["ResponseMetadata"].get("HTTPHeaders", {}).get(_REGION_HEADER)
    return str(region or "")


def require_bucket(clients: Clients, url: str) -> None:
    """Check that the bucket of a URL exists and that the caller may access it."""
    address = S3Location.parse(url)
    try:
        look_up_bucket_region(clients.client("s3"), address)
    except CloudGpuError as err:
        if is_gone(err):
            raise _no_bucket(clients, address) from err
        raise


def check_readable(clients: Clients, url: str, key: str) -> None:
    """Check that an object can be read. Permission to list a bucket does not imply permission to read its objects."""
    address = S3Location.parse(url)
    with convert_errors(f"reading s3://{address.bucket}/{key}"):
        clients.client("s3").head_object(Bucket=address.bucket, Key=key)


def archived_objects(s3: Any, address: S3Location, objects: Sequence[ObjectInfo]) -> dict[str, str]:  # noqa: ANN401
    """Return the storage class or archive tier of each object that must be restored before it can be read, by key.

    Objects in the Intelligent-Tiering class may be in an archive tier, and archived objects may have been restored for
    a time. HeadObject reports both; it is called for at most 1,000 objects, and the class decides if it fails.
    """
    archived = [item for item in objects if item.storage_class in _ARCHIVE_CLASSES]
    suspects = archived + [item for item in objects if item.storage_class == _TIERED]
    with Workers(_AT_ONCE) as workers:
        tiers = workers.map(lambda item: _archive_tier(s3, address.bucket, item), suspects[:_MOST_HEADS])
        found = {item.key: tier for item, tier in zip(suspects, tiers, strict=False) if tier}
    if len(found) == _MOST_HEADS:  # nothing is restored
        found |= {item.key: item.storage_class for item in archived[_MOST_HEADS:]}
    return found


def _archive_tier(s3: Any, bucket: str, item: ObjectInfo) -> str:  # noqa: ANN401
    """Return the archive class or tier of an object; empty if the object can be read."""
    by_class = item.storage_class if item.storage_class in _ARCHIVE_CLASSES else ""
    try:
        with convert_response_errors(f"reading the restore state of s3://{bucket}/{item.key}"):
            head = s3.head_object(Bucket=bucket, Key=item.key)
    except CloudGpuError:
        return by_class
    if by_class and _RESTORED in str(head.get("Restore") or ""):
        return ""
    return by_class or str(head.get("ArchiveStatus") or "")


def presign_urls(clients: Clients, url: str, keys: Iterable[str], expires_s: int) -> dict[str, str]:
    """Return a presigned URL for each key, valid for `expires_s` seconds. Sends no request."""
    if expires_s > _LONGEST_LINK_S:
        message = f"presigned URLs are valid for at most {_LONGEST_LINK_S} s, but {expires_s} s were requested"
        raise BadRequestError(
            message, code="AuthorizationQueryParametersError", hint="request a shorter validity period"
        )
    address, s3 = S3Location.parse(url), clients.client("s3")
    with convert_errors(f"presigning URLs for {url}"):
        return {
            key: s3.generate_presigned_url(
                "get_object", Params={"Bucket": address.bucket, "Key": key}, ExpiresIn=expires_s
            )
            for key in keys
        }


def put_files(clients: Clients, url: str, directory: Path) -> UploadResult:
    """Upload every file in a directory, skipping files that already exist under the URL with the same content.

    If the bucket does not exist, create it.
    """
    address, s3 = S3Location.parse(url), clients.client("s3")
    _ensure_bucket(clients, address.bucket)
    with convert_response_errors(f"listing {url}"):
        sizes = {item.key: item.size for item in below(s3, address)}
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    with Workers(_AT_ONCE) as workers:
        sent = list(workers.map(lambda path: _put(s3, address, path, directory, sizes), files))
    return UploadResult(
        sent=sum(size is not None for size in sent),
        sent_bytes=sum(size or 0 for size in sent),
        reused=sum(size is None for size in sent),
    )


def below(s3: Any, address: S3Location) -> Iterator[ObjectInfo]:  # noqa: ANN401
    """For `data/set`, yield this object and the objects below `data/set/`, but not `data/set-2` or folder markers."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=address.bucket, Prefix=address.prefix)
    under = f"{address.prefix}/" if address.prefix else ""
    for page in checked_pages(pages, "Contents"):
        for item in map(_object_info, page.get("Contents") or ()):
            key = item.key
            if key.endswith("/") or not (key == address.prefix or key.startswith(under)):
                continue
            relative = key[len(under) :] if key.startswith(under) else key.rpartition("/")[2]
            yield replace(item, relative=relative)


def checked_pages(pages: Iterable[Mapping[str, Any]], *content_keys: str) -> Iterator[Mapping[str, Any]]:
    """Yield the pages of an S3 listing, checking that the responses are listing pages and that the listing ends."""
    empty_pages = 0
    for page in pages:
        has_content = any(page.get(key) for key in content_keys)
        if not has_content and not _PAGE_KEYS & page.keys():
            # A proxy's error page or login page parses as an empty listing, although the bucket may contain objects.
            raise _invalid_listing("the response is not a listing")
        empty_pages = 0 if has_content else empty_pages + 1
        if empty_pages > _MOST_EMPTY_PAGES:
            raise _invalid_listing("the listing does not end")
        yield page


def _object_info(row: Mapping[str, Any]) -> ObjectInfo:
    key, size = row.get("Key"), row.get("Size")
    if not key or size is None or not 0 <= size <= _LARGEST_SIZE:
        raise _invalid_listing("an object lacks a key or a valid size")
    etag, storage_class = str(row.get("ETag") or "").strip('"'), str(row.get("StorageClass") or "STANDARD")
    return ObjectInfo(str(key), "", int(size), etag, storage_class)


def _invalid_listing(why: str) -> CloudError:
    message = f"the listing of a bucket is malformed: {why}"
    return CloudError(
        message, code=UNREACHABLE, hint="run the command again: S3 or a proxy returned an invalid response"
    )


def _put(s3: Any, address: S3Location, path: Path, directory: Path, sizes: Mapping[str, int]) -> int | None:  # noqa: ANN401
    """Upload a file and return the number of bytes sent, or None if the object already exists."""
    relative = path.relative_to(directory).as_posix()
    key = f"{address.prefix}/{relative}" if address.prefix else relative
    try:
        size, digest = path.stat().st_size, _digest(path)
    except OSError as err:
        message = f"cannot read {path}: {err.strerror}"
        raise StateError(message, hint="make the file readable, or remove it from the directory") from err
    with convert_response_errors(f"uploading {path} to s3://{address.bucket}/{key}"):
        if sizes.get(key) == size:
            existing_digest = s3.head_object(Bucket=address.bucket, Key=key)["Metadata"].get(_SHA256)
            if existing_digest == digest:
                return None
        s3.upload_file(str(path), address.bucket, key, ExtraArgs={"Metadata": {_SHA256: digest}})
    return size


def _digest(path: Path) -> str:
    with open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ensure_bucket(clients: Clients, bucket: str) -> None:
    s3 = clients.client("s3")
    try:
        with convert_errors(f"checking bucket {bucket}"):
            s3.head_bucket(Bucket=bucket)
    except CloudGpuError as err:
        if not is_gone(err):
            raise
    else:
        return
    # us-east-1 is the default and is not a valid location constraint.
    location = {} if clients.region == "us-east-1" else {"LocationConstraint": clients.region}
    options = {"CreateBucketConfiguration": location} if location else {}
    with convert_errors(f"creating bucket {bucket}"):
        s3.create_bucket(Bucket=bucket, **options)


def _no_bucket(clients: Clients, address: S3Location) -> BadRequestError:
    """Return the error for a missing bucket. If the caller may list buckets, the hint suggests a similar name."""
    try:
        with convert_response_errors("listing buckets"):
            names = [bucket["Name"] for bucket in clients.client("s3").list_buckets().get("Buckets") or ()]
    except CloudGpuError:
        names = []
    message = f"there is no bucket {address.bucket}"
    return BadRequestError(message, code="NoSuchBucket", hint=_nearest(address.bucket, names, "s3://{}"))


def _no_objects(clients: Clients, address: S3Location, url: str) -> BadRequestError:
    parent, _, name = address.prefix.rpartition("/")
    below = f"{parent}/" if parent else ""
    with convert_response_errors(f"listing s3://{address.bucket}/{below}"):
        page = clients.client("s3").list_objects_v2(Bucket=address.bucket, Prefix=below, Delimiter="/")
        folders = [prefix["Prefix"].rstrip("/") for prefix in page.get("CommonPrefixes") or ()]
        names = [
            name.rpartition("/")[2] for name in (*folders, *(entry["Key"] for entry in page.get("Contents") or ()))
        ]
    message = f"there are no objects under {url}"
    return BadRequestError(message, code="NoSuchKey", hint=_nearest(name, names, f"s3://{address.bucket}/{below}{{}}"))


def _nearest(name: str, names: Sequence[str], form: str) -> str:
    matches = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {form.format(matches[0])}?" if matches else "check the URL and the region"


def bucket_tags(clients: Clients, name: str) -> dict[str, str] | None:
    """Return the tags of a bucket, or None if the bucket does not exist."""
    try:
        with convert_response_errors(f"reading the tags of bucket {name}"):
            return tags_to_dict(clients.client("s3").get_bucket_tagging(Bucket=name).get("TagSet"))
    except CloudGpuError as err:
        if isinstance(err, CloudError) and err.code == _NO_TAGS:
            return {}
        if is_gone(err):
            return None
        raise


def empty_bucket(clients: Clients, name: str) -> int:
    """Delete every object version, delete marker and incomplete multipart upload, and return the number deleted.

    A bucket that does not exist is treated as empty.
    """
    s3 = clients.client("s3")
    count = 0
    try:
        with convert_response_errors(f"emptying bucket {name}"):
            for page in checked_pages(s3.get_paginator("list_object_versions").paginate(Bucket=name), *_LISTED):
                keys = list(_keys(page))
                for start in range(0, len(keys), _DELETED_AT_ONCE):
                    _delete(s3, name, keys[start : start + _DELETED_AT_ONCE])
                count += len(keys)
            for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=name):
                for upload in page.get("Uploads") or ():
                    s3.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
                    count += 1
    except CloudGpuError as err:
        if not is_gone(err):
            raise
    return count


def bucket_size(clients: Clients, name: str) -> int | None:
    """Return the total size in bytes of a bucket's current objects, or None if there are too many to add up quickly."""
    count = size = 0
    with convert_response_errors(f"listing bucket {name}"):
        for page in checked_pages(
            clients.client("s3").get_paginator("list_objects_v2").paginate(Bucket=name), "Contents"
        ):
            rows = page.get("Contents") or ()
            count += len(rows)
            size += sum(int(row["Size"]) for row in rows)
            if count >= _COUNTED and page.get("IsTruncated"):
                return None
    return size


def _keys(page: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for key in _LISTED:
        for version in page.get(key) or ():
            yield {"Key": version["Key"], "VersionId": version["VersionId"]}


def _delete(s3: Any, name: str, keys: list[dict[str, str]]) -> None:  # noqa: ANN401
    errors = s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True}).get("Errors") or []
    if errors:
        first = errors[0]
        objects = "1 object" if len(errors) == 1 else f"{len(errors)} objects"
        message = f"S3 did not delete {objects} in bucket {name}: {first.get('Key')}: {first.get('Message')}"
        hint = "check the bucket's retention rules and the s3:DeleteObjectVersion permission"
        raise CloudError(message, code=str(first.get("Code") or ""), hint=hint)
