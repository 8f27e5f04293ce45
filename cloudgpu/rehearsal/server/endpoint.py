"""The request handler for the simulated endpoint, including S3's `aws-chunked` uploads, and the API call of a request.

A large request must pass `guard` before its body is read. Control calls go to `ControlApi`. For any other request,
the handler verifies the signature, applies the faults that precede the call, executes the call, saves its effect,
and applies the faults that follow it.

Chunk signatures are ignored.
"""

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Protocol
from urllib.parse import parse_qsl

from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.faults.api_faults import FaultRule, FaultRules, MatchedCall, Phase
from cloudgpu.rehearsal.layout import NotSavedError
from cloudgpu.rehearsal.server.control import PREFIX, ControlApi
from cloudgpu.rehearsal.server.error_responses import error_response
from cloudgpu.rehearsal.server.http_message import DropConnectionError, HttpRequest, HttpResponse
from cloudgpu.rehearsal.server.sigv4 import Keyring, Scope, SignatureError, verify, verify_head

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
_FRAMING_FIELDS = ("x-amz-decoded-content-length", "x-amz-trailer", "x-amz-content-sha256", "content-length")
_log = logging.getLogger(__name__)


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


def is_streaming(request: HttpRequest) -> bool:
    """Return True if the body uses aws-chunked framing."""
    return request.headers.find("x-amz-content-sha256").startswith("STREAMING-")


def decode_body(request: HttpRequest) -> HttpRequest:
    """Return the request with its body decoded; checksums in the trailer become ordinary headers."""
    body, trailer = _decode(request.body)
    expected = request.headers.find("x-amz-decoded-content-length")
    if expected and int(expected) != len(body):
        message = f"x-amz-decoded-content-length is {expected}, but the chunks contain {len(body)} bytes"
        raise ValueError(message)
    other_encodings = [part for part in _encodings(request) if part != "aws-chunked"]
    headers = request.headers.without(*_FRAMING_FIELDS, "content-encoding").with_fields(trailer)
    headers = headers.with_fields({"Content-Length": str(len(body)), "x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    if other_encodings:
        headers = headers.with_fields({"Content-Encoding": ",".join(other_encodings)})
    return HttpRequest(request.method, request.target, headers, body)


def _encodings(request: HttpRequest) -> list[str]:
    return [part.strip() for part in request.headers.find("content-encoding").split(",") if part.strip()]


def _decode(framed: bytes) -> tuple[bytes, dict[str, str]]:
    parts: list[bytes] = []
    position = 0
    while True:
        end = framed.find(b"\r\n", position)
        if end < 0:
            message = "an aws-chunked body ends inside a chunk header"
            raise ValueError(message)
        size = int(framed[position:end].split(b";")[0], 16)
        position = end + 2
        if size == 0:
            return b"".join(parts), _trailer(framed[position:])
        if position + size > len(framed):
            message = "an aws-chunked body ends inside a chunk"
            raise ValueError(message)
        parts.append(framed[position : position + size])
        position += size + 2


def _trailer(rest: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in rest.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip().lower().startswith("x-amz-checksum-"):
            fields[name.strip()] = value.strip()
    return fields


class EndpointCloud(Protocol):
    """The interface of the simulated cloud for the endpoint, which `SimulatedCloud` implements."""

    def execute(self, request: HttpRequest, scope: Scope, *, lag_s: float) -> HttpResponse:
        """Execute a verified request. Tag searches find a resource only `lag_s` seconds after it was first tagged."""

    def admit(self, *, frees: bool) -> None:
        """Reject a call before it starts if the disk is full. Calls that free resources may use reserved disk space.

        Raises:
            NotSavedError: The disk is full or not writable.
        """

    def save(self, *, mutated: bool) -> None:
        """Save the effect of a call. If saving fails, undo the call.

        Raises:
            NotSavedError: The disk is full or not writable.
        """


@dataclass
class EndpointApplication:
    """The request handler of one server, which the HTTP server calls as its `Application`.

    Attributes:
        cloud: Function that waits for the simulated cloud and returns it; it raises CloudGpuError if loading failed.
        touched: Function that is called for every verified request from a client.
    """

    port: int
    keyring: Keyring
    control: ControlApi
    faults: FaultRules
    lock: RLock
    clock: Clock
    cloud: Callable[[], EndpointCloud]
    touched: Callable[[], None]

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Handle one request and return the response."""
        refused = forbidden_response(request, self.port)
        if refused is not None:
            return refused
        if request.raw_path.startswith(PREFIX):
            return self.control.handle(request)
        try:
            scope = verify(request, self.keyring.secret_of, self.clock.now())
            request = decode_body(request) if is_streaming(request) else request
        except SignatureError as err:
            return error_response(_service_of(request), err.code, err.message, 403)
        except ValueError as err:
            return error_response("s3", "InvalidRequest", str(err), 400)
        self.touched()
        return self._execute(request, scope, identify(request, scope))

    def guard(self, request: HttpRequest) -> HttpResponse | None:
        """Return an error for a large request that is not signed with this state home's keys, or None to accept it.

        Large control calls are always rejected.
        """
        refused = forbidden_response(request, self.port)
        if refused is not None or request.raw_path.startswith(PREFIX):
            return refused or HttpResponse(413, {"Content-Type": "text/plain"}, b"the request body is too large")
        try:
            verify_head(request, self.keyring.secret_of, self.clock.now())
        except SignatureError as err:
            status = 413 if err.code == "RequestEntityTooLarge" else 403
            return error_response(_service_of(request), err.code, err.message, status)
        return None

    def _execute(self, request: HttpRequest, scope: Scope, call: MatchedCall) -> HttpResponse:
        fault_response = self._apply_fault(call, "before")
        if fault_response is not None:
            return fault_response
        try:
            response = self._execute_and_save(request, scope, call)
        except NotSavedError as err:
            _log.error("%s rejected: %s", call.action, err.message)
            # Return a client error: SDKs retry server errors automatically, but the disk will still be full.
            return error_response(call.service, "InsufficientStorage", f"{err.message}; {err.hint}", 400)
        except CloudGpuError as err:
            _log.exception("%s failed", call.action)
            return error_response(call.service, "InternalFailure", err.message, 500)
        # Use the service's format: a client that cannot parse a response reports a network error.
        except Exception as err:  # noqa: BLE001 - moto may raise anything for a request it does not expect
            _log.exception("%s failed", call.action)
            message = f"bug in the rehearsal cloud ({type(err).__name__}): see its server.log"
            return error_response(call.service, "InternalFailure", message, 500)
        fault_response = self._apply_fault(call, "after_effect")
        return response if fault_response is None else fault_response

    def _execute_and_save(self, request: HttpRequest, scope: Scope, call: MatchedCall) -> HttpResponse:
        """Execute the call and save its effect before the client receives the response."""
        cloud = self.cloud()
        lag_s = self.faults.lag_s(call)
        with self.lock:
            started = time.monotonic()
            if call.mutating:
                cloud.admit(frees=call.releases_resources)
            response = cloud.execute(request, scope, lag_s=lag_s)
            cloud.save(mutated=call.mutating)
        elapsed_ms = (time.monotonic() - started) * 1000
        _log.info("%s %s %s -> %d in %.0f ms", call.service, call.action, call.region, response.status, elapsed_ms)
        return response

    def _apply_fault(self, call: MatchedCall, phase: Phase) -> HttpResponse | None:
        rule = self.faults.find(call, phase)
        if rule is None:
            return None
        _log.info("fault %s applies to %s (%s)", rule.id, call.action, phase)
        return self._fault(rule, call)

    def _fault(self, rule: FaultRule, call: MatchedCall) -> HttpResponse | None:
        if rule.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if rule.do == "delay":
            self.clock.sleep(rule.seconds)
        if rule.do == "hold":
            self.faults.hold(rule, call)
        if rule.do == "drop" or (rule.do == "hold" and rule.drop):
            raise DropConnectionError
        if rule.do == "error":
            return error_response(call.service, rule.code, rule.message, rule.http)
        return None


def _service_of(request: HttpRequest) -> str:
    """Return the service that an unverified request claims to use, so that the error has the service's format."""
    scope = request.headers.find("authorization").partition("Credential=")[2].partition(",")[0].split("/")
    if len(scope) == 5:  # noqa: PLR2004 - id, date, region, service, terminator
        return scope[3]
    return "ssm" if request.headers.find("x-amz-target") else "s3"


def forbidden_response(request: HttpRequest, port: int) -> HttpResponse | None:
    """Return an error for a request from a web page or to another host name, or None to accept the request."""
    if request.headers.find("origin"):
        return _forbidden("requests from web pages are not allowed")
    host = request.headers.find("host").lower()
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return _forbidden("this endpoint accepts requests to 127.0.0.1 and localhost only")
    return None


def _forbidden(reason: str) -> HttpResponse:
    return HttpResponse(403, {"Content-Type": "text/plain"}, reason.encode())
