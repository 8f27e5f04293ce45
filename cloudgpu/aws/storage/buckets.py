"""Operations on whole buckets: tags, size, and deleting the content."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from cloudgpu.aws.ec2.tagging import mapped
from cloudgpu.aws.session.errors import answered, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.storage.objects import ending
from cloudgpu.errors import CloudError, CloudGpuError

_AT_ONCE: Final = 1000
"""Objects that one deleting call takes."""
_COUNTED: Final = 10_000
"""Objects that are counted at most."""
_LISTED: Final = ("Versions", "DeleteMarkers")
_NO_TAGS: Final = "NoSuchTagSet"


def bucket_tags(clients: Clients, name: str) -> dict[str, str] | None:
    """Return the tags of a bucket, or None if the bucket does not exist.

    Raises:
        CloudError: The bucket belongs to another account, or S3 cannot be reached.
    """
    try:
        with answered(f"reading the tags of bucket {name}"):
            return mapped(clients.client("s3").get_bucket_tagging(Bucket=name).get("TagSet"))
    except CloudGpuError as err:
        if isinstance(err, CloudError) and err.code == _NO_TAGS:
            return {}
        if is_gone(err):
            return None
        raise


def empty(clients: Clients, name: str) -> int:
    """Delete every object, object version and multipart upload, and return how many there were.

    Raises:
        CloudError: S3 refused some deletions; the error is the first refusal.
    """
    s3 = clients.client("s3")
    count = 0
    try:
        with answered(f"emptying bucket {name}"):
            for page in ending(s3.get_paginator("list_object_versions").paginate(Bucket=name), *_LISTED):
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


def holds(clients: Clients, name: str) -> int | None:
    """Return the bytes in a bucket, or None if there are so many objects that counting them would take minutes.

    Raises:
        CloudError: S3 refused or cannot be reached.
    """
    count = size = 0
    with answered(f"listing bucket {name}"):
        for page in ending(clients.client("s3").get_paginator("list_objects_v2").paginate(Bucket=name), "Contents"):
            rows = page.get("Contents") or ()
            count += len(rows)
            size += sum(int(row["Size"]) for row in rows)
            if count >= _COUNTED and page.get("IsTruncated"):
                return None
    return size


def _keys(page: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for kind in _LISTED:
        for version in page.get(kind) or ():
            yield {"Key": version["Key"], "VersionId": version["VersionId"]}


def _delete(s3: Any, name: str, keys: list[dict[str, str]]) -> None:  # noqa: ANN401
    refused = s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True}).get("Errors") or []
    if refused:
        first = refused[0]
        message = (
            f"{len(refused)} objects of bucket {name} were not deleted: {first.get('Key')}: {first.get('Message')}"
        )
        hint = "a retention rule or a missing s3:DeleteObjectVersion permission keeps them"
        raise CloudError(message, code=str(first.get("Code") or ""), hint=hint)
