"""S3 and EFS as moto does not simulate them.

S3 rejects invalid requests and applies default settings to new buckets. EFS leaves out members that moto adds.

Source of codes and messages: `tests/rehearsal/fidelity/recorded_errors.py`.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote
from xml.etree import ElementTree

from moto.core.exceptions import JsonRESTError
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.efs.responses import EFSResponse
from moto.s3.models import PublicAccessBlock, s3_backends

from cloudgpu.rehearsal.aws_api.iam_service import EFS, is_missing
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions
from cloudgpu.rehearsal.server.error_responses import error_response
from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse

_BUCKET_PATH: Final = re.compile(r"/[^/]+/?")
_OK: Final = 300
_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_TAG_TEXT: Final = re.compile(r"[\w\s+\-=._:/@]*")
_LOCATION: Final = re.compile(r"<LocationConstraint>([^<]*)</LocationConstraint>")
_DEFAULT_REGION: Final = "us-east-1"
_RESERVED: Final = "aws:"
Response = tuple[str, dict[str, str | int]]
_MOTO_MEMBERS: Final = ("LifecyclePolicies", "SecurityGroups")
"""Settings of file systems and mount targets, which AWS returns from operations of their own."""


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


def rejection(request: HttpRequest, region: str) -> HttpResponse | None:
    """Return the error with which S3 rejects the request, or None."""
    bucket, _, key = request.raw_path.lstrip("/").partition("/")
    query = request.query()
    if request.method == "PUT" and key:
        return _part_error(bucket, query)
    if request.method == "PUT" and not query:
        return _creation_error(request, bucket, region)
    for name, check in _SUBRESOURCES.items():
        if name in query:
            return check(request, bucket)
    return None


def _creation_error(request: HttpRequest, name: str, region: str) -> HttpResponse | None:
    if not _BUCKET_NAME.fullmatch(name):
        return _error("InvalidBucketName", "The specified bucket is not valid.", 400, BucketName=unquote(name))
    location = _LOCATION.search(request.body.decode(errors="replace"))
    if location is not None and location[1] == region == _DEFAULT_REGION:
        message = "The specified location-constraint is not valid"
        return _error("InvalidLocationConstraint", message, 400, LocationConstraint=location[1])
    tags = requested_tags(request.body)
    if any(tag_key.startswith(_RESERVED) for tag_key, _ in tags):
        message = (
            'User-defined tag keys can\'t start with "aws:". This prefix is reserved for system tags. Remove "aws:" '
            "from your tag keys and try again."
        )
        return _error("InvalidTag", message, 400)
    if _bucket(name) is not None and tags:
        message = "Your previous request to create the named bucket succeeded and you already own it."
        return _error("BucketAlreadyOwnedByYou", message, 409, BucketName=name)
    return _tag_error(tags)


def _part_error(bucket: str, query: Mapping[str, str]) -> HttpResponse | None:
    upload_id, found = query.get("uploadId"), _bucket(bucket)
    if upload_id is None or found is None or upload_id in found.multiparts:
        return None
    message = (
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or "
        "completed."
    )
    return _error("NoSuchUpload", message, 404, UploadId=upload_id)


def _tagging_error(request: HttpRequest, bucket: str) -> HttpResponse | None:
    if request.method != "PUT" or _bucket(bucket) is None:
        return None
    tags = requested_tags(request.body)
    reserved = next((key for key, _ in tags if key.startswith(_RESERVED)), None)
    if reserved is not None:
        return _error("InvalidTag", "System tags cannot be added/updated by requester", 400, TagKey=reserved)
    return _tag_error(tags)


def _tag_error(tags: list[tuple[str, str]]) -> HttpResponse | None:
    keys = [key for key, _ in tags]
    for key, value in tags:
        if keys.count(key) > 1:
            return _error("InvalidTag", "Cannot provide multiple Tags with the same key", 400, TagKey=key)
        if not _TAG_TEXT.fullmatch(key):
            return _error("InvalidTag", "The TagKey you have provided is invalid", 400, TagKey=key)
        if not _TAG_TEXT.fullmatch(value):
            return _error("InvalidTag", "The TagValue you have provided is invalid", 400, TagKey=key, TagValue=value)
    return None


def _encryption_error(request: HttpRequest, bucket: str) -> HttpResponse | None:
    """Check that the bucket exists before moto parses the settings."""
    if request.method != "PUT" or _bucket(bucket) is not None:
        return None
    return _error("NoSuchBucket", "The specified bucket does not exist", 404, BucketName=bucket)


def _access_block_error(request: HttpRequest, bucket: str) -> HttpResponse | None:
    found = _bucket(bucket)
    if request.method != "GET" or found is None or found.public_access_block is not None:
        return None
    message = "The public access block configuration was not found"
    return _error("NoSuchPublicAccessBlockConfiguration", message, 404, BucketName=bucket)


_SUBRESOURCES: Final[Mapping[str, Callable[[HttpRequest, str], HttpResponse | None]]] = {
    "tagging": _tagging_error,
    "encryption": _encryption_error,
    "publicAccessBlock": _access_block_error,
}
"""Checks by the query parameter that names a bucket's setting."""


def _bucket(name: str) -> Any:  # noqa: ANN401 - moto's bucket
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(name)


def _error(code: str, message: str, status: int, **details: str) -> HttpResponse:
    return error_response("s3", code, message, status, details)


class NotAuthorizedError(JsonRESTError):
    """EFS's error for a call that the caller may not make; it does not name the action."""

    code = 403

    def __init__(self) -> None:
        """Create the error."""
        message = "User is not authorized to perform that action on the specified resource"
        super().__init__("AccessDeniedException", message)


class StrictEfs(EFSResponse):
    """A handler for one EFS request."""

    def create_file_system(self) -> Response:
        """Create a file system and describe it."""
        return _described(super().create_file_system())

    def describe_file_systems(self) -> Response:
        """Describe file systems."""
        return _described(super().describe_file_systems())

    def __init__(self, behaviour: ActiveConditions) -> None:
        """Create a handler."""
        super().__init__()
        self._behaviour = behaviour

    def create_mount_target(self) -> Response:
        """Create a mount target and describe it. Without groups, it gets the default group of its VPC."""
        if is_missing(self._behaviour, EFS):
            raise NotAuthorizedError
        response = super().create_mount_target()
        target = self.efs_backend.mount_targets_by_id[json.loads(response[0])["MountTargetId"]]
        if target.security_groups is None:
            groups = self.efs_backend.ec2_backend.enis[target.network_interface_id].group_set
            target.security_groups = [group.id for group in groups]
        return _described(response)

    def describe_mount_targets(self) -> Response:
        """Describe mount targets."""
        return _described(super().describe_mount_targets())


def _described(response: Response) -> Response:
    body, headers = response
    value: dict[str, Any] = json.loads(body)
    for description in (value, *value.get("FileSystems", ()), *value.get("MountTargets", ())):
        for name in _MOTO_MEMBERS:
            description.pop(name, None)
    return json.dumps(value), headers
