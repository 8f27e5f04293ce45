"""Which operation of botocore's service models a request calls."""

import pytest

from cloudgpu.rehearsal.server.http_message import Headers, HttpRequest
from cloudgpu.rehearsal.server.services import find_operation

COPY = {"X-Amz-Copy-Source": "/bucket/other"}


@pytest.mark.parametrize(
    ("service", "method", "target", "headers", "operation"),
    [
        ("s3", "GET", "/", {}, "ListBuckets"),
        ("s3", "GET", "/bucket?list-type=2&prefix=a", {}, "ListObjectsV2"),
        ("s3", "GET", "/bucket", {}, "ListObjects"),
        ("s3", "HEAD", "/bucket", {}, "HeadBucket"),
        ("s3", "PUT", "/bucket/", {}, "CreateBucket"),
        ("s3", "GET", "/bucket?tagging", {}, "GetBucketTagging"),
        ("s3", "GET", "/bucket?versions", {}, "ListObjectVersions"),
        ("s3", "GET", "/bucket?location", {}, "GetBucketLocation"),
        ("s3", "PUT", "/bucket?publicAccessBlock", {}, "PutPublicAccessBlock"),
        ("s3", "PUT", "/bucket?lifecycle", {}, "PutBucketLifecycleConfiguration"),
        ("s3", "POST", "/bucket?delete", {}, "DeleteObjects"),
        ("s3", "GET", "/bucket/a/b%20c", {}, "GetObject"),
        ("s3", "PUT", "/bucket/key", {}, "PutObject"),
        ("s3", "PUT", "/bucket/key", COPY, "CopyObject"),
        ("s3", "PUT", "/bucket/key?partNumber=1&uploadId=u", {}, "UploadPart"),
        ("s3", "PUT", "/bucket/key?partNumber=1&uploadId=u", COPY, "UploadPartCopy"),
        ("s3", "POST", "/bucket/key?uploads", {}, "CreateMultipartUpload"),
        ("s3", "POST", "/bucket/key?uploadId=u", {}, "CompleteMultipartUpload"),
        ("elasticfilesystem", "GET", "/2015-02-01/file-systems?MaxItems=5", {}, "DescribeFileSystems"),
        ("elasticfilesystem", "DELETE", "/2015-02-01/mount-targets/fsmt-1", {}, "DeleteMountTarget"),
        ("elasticfilesystem", "PUT", "/2015-02-01/resource-tags/fs-1", {}, None),
        ("elasticfilesystem", "POST", "/2015-02-01/resource-tags/fs-1", {}, "TagResource"),
        ("scheduler", "PUT", "/schedules/name", {}, "UpdateSchedule"),
        ("scheduler", "GET", "/schedule-groups", {}, "ListScheduleGroups"),
        ("scheduler", "PATCH", "/schedules/name", {}, None),
    ],
)
def test_rest_request_is_routed_by_method_path_query_and_headers(service, method, target, headers, operation):
    found = find_operation(service, "", HttpRequest(method, target, Headers(headers)))
    assert (found.name if found else None) == operation


def test_other_requests_are_routed_by_their_action():
    request = HttpRequest("POST", "/", Headers())
    found = find_operation("ec2", "DescribeInstances", request)
    assert found is not None
    assert found.name == "DescribeInstances"
    assert find_operation("servicequotas", "GetServiceQuota", request) is not None
    assert find_operation("tagging", "GetResources", request) is not None
    assert find_operation("ec2", "DescribeNothing", request) is None
    assert find_operation("no-service", "DescribeInstances", request) is None
