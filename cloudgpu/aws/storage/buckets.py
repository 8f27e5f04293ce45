"""Read the tags and the size of a bucket, and delete its contents."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cloudgpu.aws.ec2.tagging import tags_to_dict
from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.storage.objects import checked_pages
from cloudgpu.errors import CloudError, CloudGpuError

_AT_ONCE: Final = 1000
"""Maximum number of objects in one delete call."""
_COUNTED: Final = 10_000
"""Number of objects after which `bucket_size` gives up."""
_LISTED: Final = ("Versions", "DeleteMarkers")
_NO_TAGS: Final = "NoSuchTagSet"


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
                for start in range(0, len(keys), _AT_ONCE):
                    _delete(s3, name, keys[start : start + _AT_ONCE])
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
