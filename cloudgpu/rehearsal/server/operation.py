"""Identify a request's API call, for fault rules and the log, and distinguish mutating calls from reads."""

import re
from urllib.parse import parse_qsl

from cloudgpu.rehearsal.faults.api_faults import MatchedCall
from cloudgpu.rehearsal.server.http_message import HttpRequest
from cloudgpu.rehearsal.server.sigv4 import Scope

_READ_ACTION = re.compile(r"(Describe|Get|List|Head|Lookup|Search|Select|BatchGet|AssumeRole)")
_MATCH_PARAMETERS = {
    "instance_type": re.compile(r"(^|\.)InstanceType$"),
    "zone": re.compile(r"(^|\.)AvailabilityZone$"),
    "subnet": re.compile(r"(^|\.)SubnetId$"),
    "market": re.compile(r"(^|\.)(DefaultTargetCapacityType|MarketType)$"),
}
_S3_POSTS = (("uploads", "CreateMultipartUpload"), ("uploadId", "CompleteMultipartUpload"), ("delete", "DeleteObjects"))


_S3_SUBRESOURCES = {
    "tagging": "BucketTagging",
    "publicAccessBlock": "PublicAccessBlock",
    "encryption": "BucketEncryption",
    "location": "BucketLocation",
    "versions": "ObjectVersions",
    "uploads": "MultipartUploads",
}
"""Mapping from a query parameter of a bucket URL to the resource name in the action's name."""
_S3_LISTS = ("versions", "uploads")
_EFS = {
    ("POST", "file-systems"): "CreateFileSystem",
    ("GET", "file-systems"): "DescribeFileSystems",
    ("PUT", "file-systems"): "UpdateFileSystem",
    ("DELETE", "file-systems"): "DeleteFileSystem",
    ("POST", "mount-targets"): "CreateMountTarget",
    ("GET", "mount-targets"): "DescribeMountTargets",
    ("PUT", "mount-targets"): "ModifyMountTargetSecurityGroups",
    ("DELETE", "mount-targets"): "DeleteMountTarget",
    ("POST", "resource-tags"): "TagResource",
    ("DELETE", "resource-tags"): "UntagResource",
    ("GET", "resource-tags"): "ListTagsForResource",
}
"""Mapping from HTTP method and first path segment to the action, because EFS requests do not name their action."""


def identify(request: HttpRequest, scope: Scope) -> MatchedCall:
    """Return the service, action, region and parameters that fault rules match, and whether the call is mutating."""
    if scope.service == "s3":
        action = _s3_action(request)
        return MatchedCall("s3", action, scope.region, request.method not in ("GET", "HEAD"))
    if scope.service == "scheduler":
        return MatchedCall("scheduler", _scheduler_action(request), scope.region, request.method != "GET")
    if scope.service == "elasticfilesystem":
        return MatchedCall("efs", _efs_action(request), scope.region, request.method != "GET")
    fields = _form(request)
    target = request.headers.find("x-amz-target")
    action = fields.get("Action") or target.rpartition(".")[2] or f"{request.method} {request.raw_path}"
    is_read = bool(_READ_ACTION.match(action)) if " " not in action else request.method in ("GET", "HEAD")
    return MatchedCall(scope.service, action, scope.region, not is_read, _match_parameters(fields))


def _scheduler_action(request: HttpRequest) -> str:
    """Return the action for the method and path; `PUT /schedules/NAME`, for example, is UpdateSchedule."""
    collection, _, name = request.raw_path.lstrip("/").partition("/")
    if collection == "tags":
        verbs = {"GET": "ListTagsForResource", "POST": "TagResource", "DELETE": "UntagResource"}
        return verbs.get(request.method, f"{request.method} {request.raw_path}")
    noun = "ScheduleGroup" if collection == "schedule-groups" else "Schedule"
    if not name:
        return f"List{noun}s"
    verb = {"GET": "Get", "POST": "Create", "PUT": "Update", "DELETE": "Delete"}.get(request.method, "")
    return f"{verb}{noun}" if verb else f"{request.method} {request.raw_path}"


def _form(request: HttpRequest) -> dict[str, str]:
    if "x-www-form-urlencoded" not in request.headers.find("content-type"):
        return request.query()
    return dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))


def _match_parameters(fields: dict[str, str]) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for parameter, pattern in _MATCH_PARAMETERS.items():
        for name, value in fields.items():
            if pattern.search(name):
                parameters.setdefault(parameter, value)
    return parameters


def _efs_action(request: HttpRequest) -> str:
    """Return the action for the method and a path such as `/2015-02-01/mount-targets/fsmt-1`."""
    _, _, rest = request.raw_path.lstrip("/").partition("/")
    return _EFS.get((request.method, rest.partition("/")[0]), f"{request.method} {request.raw_path}")


def _s3_action(request: HttpRequest) -> str:
    bucket, _, key = request.raw_path.lstrip("/").partition("/")
    query = request.query()
    if not bucket:
        return "ListBuckets"
    if request.method == "POST":
        return next((name for parameter, name in _S3_POSTS if parameter in query), "PostObject")
    if key:
        return _s3_object_action(request.method, query)
    subresource = next((parameter for parameter in _S3_SUBRESOURCES if parameter in query), "")
    if subresource:
        verb = "List" if subresource in _S3_LISTS else request.method.capitalize()
        return f"{verb}{_S3_SUBRESOURCES[subresource]}"
    names = {"GET": "ListObjectsV2", "HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}
    return names.get(request.method, request.method)


def _s3_object_action(method: str, query: dict[str, str]) -> str:
    if "uploadId" in query:
        return {"PUT": "UploadPart", "DELETE": "AbortMultipartUpload", "GET": "ListParts"}.get(method, method)
    return f"{method.capitalize()}Object"
