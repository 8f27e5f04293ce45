"""Give new buckets what AWS gives them and moto does not: the tags of the request and the default settings."""

import re
from typing import Final
from xml.etree import ElementTree

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import PublicAccessBlock, s3_backends

from cloudgpu.rehearsal.server.http_message import HttpRequest

_BUCKET_PATH: Final = re.compile(r"/[^/]+/?")
_OK: Final = 300


def apply_defaults(request: HttpRequest, status: int) -> None:
    """Apply AWS's defaults and the requested tags after a successful call that changes a bucket.

    Since 2023 every bucket is encrypted with S3's keys and new buckets block public access. Source: localstack,
    tests/aws/services/s3/test_s3_api.snapshot.json, test_s3_default_bucket_encryption, test_crud_public_access_block.
    """
    if status >= _OK or not _BUCKET_PATH.fullmatch(request.raw_path):
        return
    backend, name, query = s3_backends[DEFAULT_ACCOUNT_ID]["aws"], request.raw_path.strip("/"), request.query()
    if request.method == "PUT" and not query:
        bucket = backend.get_bucket(name)
        if bucket.encryption is None:  # not for a bucket that existed: in us-east-1, creating it again succeeds
            bucket.public_access_block = PublicAccessBlock(True, True, True, True)  # noqa: FBT003 - moto's signature
    if request.method == "PUT" and query.keys() <= {"tagging"}:  # moto loses a tag's empty value
        tags = dict(requested_tags(request.body))
        if tags:
            backend.put_bucket_tagging(name, tags)
    if (request.method == "PUT" and not query) or (request.method == "DELETE" and "encryption" in query):
        bucket = backend.get_bucket(name)
        bucket.encryption = bucket.encryption or _default_encryption()


def _default_encryption() -> dict[str, object]:
    """Return the default settings in moto's form."""
    return {"Rule": {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": "false"}}


def requested_tags(body: bytes) -> list[tuple[str, str]]:
    """Return the tags in the body of a request in its order, or nothing if the body is not XML."""
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - the request is signed with a key of this state home
    except ElementTree.ParseError:
        return []
    rows = [{member.tag.rpartition("}")[2]: member.text or "" for member in row} for row in root.iter() if _is_tag(row)]
    return [(row["Key"], row["Value"]) for row in rows if "Key" in row and "Value" in row]


def _is_tag(element: ElementTree.Element) -> bool:
    return element.tag.rpartition("}")[2] == "Tag"
