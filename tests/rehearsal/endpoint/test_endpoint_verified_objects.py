"""Buckets and objects: places, ranges, headers, conditions, multipart uploads and tags.

Facts: moto tests/test_s3 (test_s3.py, test_s3_conditionals.py, test_s3_multipart.py, test_s3_tagging.py and others),
verified against AWS by its authors.
"""

import io
import urllib.request

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

PART = 5 * 1024 * 1024
"""Smallest part of a multipart upload but the last, in bytes."""
CONDITION = "At least one of the pre-conditions you specified did not hold"


def error_of(work, *args, **kwargs) -> dict[str, str]:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return dict(err.value.response["Error"])


@pytest.fixture
def s3(rig):
    return rig.aws("s3")


@pytest.fixture
def bucket(s3):
    s3.create_bucket(Bucket="lab")
    return {"Bucket": "lab"}


@pytest.mark.parametrize("configuration", [{}, {"LocationConstraint": ""}])
def test_bucket_without_a_place_is_possible_only_in_us_east_1(rig, s3, configuration):
    loose = {"parameter_validation": False}
    rig.aws("s3", **loose).create_bucket(Bucket="near", CreateBucketConfiguration=configuration)
    far = rig.aws("s3", "us-east-2", **loose)
    error = error_of(far.create_bucket, Bucket="far", CreateBucketConfiguration=configuration)
    assert error["Code"] == "IllegalLocationConstraintException"
    assert error["Message"] == (
        "The unspecified location constraint is incompatible for the region specific endpoint this request was sent to."
    )
    assert [row["Name"] for row in s3.list_buckets()["Buckets"]] == ["near"]


def test_us_east_1_is_no_place_that_a_request_may_name(rig):
    place = {"LocationConstraint": "us-east-1"}
    error = error_of(
        rig.aws("s3", parameter_validation=False).create_bucket, Bucket="lab", CreateBucketConfiguration=place
    )
    assert error["Code"] == "InvalidLocationConstraint"
    assert error["Message"] == "The specified location-constraint is not valid"


@pytest.mark.parametrize("place", ["us-east-1", "us-east-2", "eu-central-1", "us-gov-east-2"])
def test_bucket_must_be_in_the_region_of_the_endpoint(rig, place):
    west = rig.aws("s3", "us-west-2")
    error = error_of(west.create_bucket, Bucket="lab", CreateBucketConfiguration={"LocationConstraint": place})
    assert error["Code"] == "IllegalLocationConstraintException"
    assert error["Message"] == (
        f"The {place} location constraint is incompatible for the region specific endpoint this request was sent to."
    )


@pytest.mark.parametrize("method", ["get_object", "head_object"])
@pytest.mark.parametrize("size", [10, 9_000_000])
def test_object_of_one_part_is_its_first_part_and_has_no_second(s3, bucket, method, size):
    s3.put_object(**bucket, Key="data", Body=b"d" * size)
    read = getattr(s3, method)
    whole, first = read(**bucket, Key="data"), read(**bucket, Key="data", PartNumber=1)
    if method == "get_object":
        assert whole["Body"].read() == first["Body"].read() == b"d" * size
    assert (whole["ResponseMetadata"]["HTTPStatusCode"], whole["ContentLength"]) == (200, size)
    assert "content-range" not in whole["ResponseMetadata"]["HTTPHeaders"]
    assert (first["ResponseMetadata"]["HTTPStatusCode"], first["ContentLength"]) == (206, size)
    assert first["ResponseMetadata"]["HTTPHeaders"]["content-range"] == f"bytes 0-{size - 1}/{size}"
    assert whole["AcceptRanges"] == first["AcceptRanges"] == "bytes"
    assert error_of(s3.head_object, **bucket, Key="data", PartNumber=2)["Code"] == "416"


def test_missing_object_has_a_code_when_read_and_only_a_status_when_described(s3, bucket):
    assert error_of(s3.get_object, **bucket, Key="absent")["Code"] == "NoSuchKey"
    assert error_of(s3.head_object, **bucket, Key="absent")["Code"] == "404"


@pytest.mark.parametrize(
    ("requested", "shown", "length"),
    [
        ("0-9", "bytes 0-1/2", "2"),
        ("0-", "bytes 0-1/2", "2"),
        ("-1", "bytes 1-1/2", "1"),
        ("1-1", "bytes 1-1/2", "1"),
        ("1-0", None, "2"),
    ],
)
def test_range_shortens_the_length_and_a_reversed_range_is_ignored(s3, bucket, requested, shown, length):
    s3.put_object(**bucket, Key="two", Body=b"ab")
    headers = s3.head_object(**bucket, Key="two", Range=f"bytes={requested}")["ResponseMetadata"]["HTTPHeaders"]
    assert (headers.get("content-range"), headers["content-length"]) == (shown, length)


@pytest.mark.parametrize("requested", ["5-9", "100-"])
def test_range_behind_the_object_is_rejected(s3, bucket, requested):
    s3.put_object(**bucket, Key="two", Body=b"ab")
    assert error_of(s3.head_object, **bucket, Key="two", Range=f"bytes={requested}")["Code"] == "416"


HEADERS = {
    "ResponseCacheControl": ("Cache-Control", "max-age=9"),
    "ResponseContentDisposition": ("Content-Disposition", 'attachment; filename="plan.txt"'),
    "ResponseContentEncoding": ("Content-Encoding", "identity"),
    "ResponseContentLanguage": ("Content-Language", "en-GB"),
    "ResponseContentType": ("Content-Type", "text/x-plan"),
    "ResponseExpires": ("Expires", "Thu, 01 Jan 2026 00:00:00 GMT"),
}


def test_reader_chooses_response_headers_signed_or_by_url(s3, bucket):
    s3.put_object(**bucket, Key="plan", Body=b"plan")
    parameters = {**bucket, "Key": "plan", **{name: value for name, (_, value) in HEADERS.items()}}
    read = s3.get_object(**parameters)
    assert read["Body"].read() == b"plan"
    by_call = read["ResponseMetadata"]["HTTPHeaders"]
    url = s3.generate_presigned_url("get_object", parameters, ExpiresIn=60)
    with urllib.request.urlopen(url) as answer:
        assert answer.read() == b"plan"
        by_url = answer.headers
    for header, value in HEADERS.values():
        assert by_call[header.lower()] == by_url[header] == value


@pytest.mark.parametrize("encoding", [None, "gzip", "unheard-of"])
def test_content_encoding_is_returned_as_it_was_written(s3, bucket, encoding):
    arguments = {"ContentEncoding": encoding} if encoding else {}
    s3.upload_fileobj(io.BytesIO(b"\x01" * 1024), "lab", "packed", ExtraArgs=arguments)
    read = s3.get_object(**bucket, Key="packed")
    assert (read.get("ContentEncoding"), read["Body"].read()) == (encoding, b"\x01" * 1024)


def test_answers_are_xml_and_objects_are_binary_by_default(s3, bucket):
    s3.put_object(**bucket, Key="data", Body=b"data")
    for answer in (s3.list_buckets(), s3.list_object_versions(**bucket), s3.head_bucket(**bucket)):
        assert answer["ResponseMetadata"]["HTTPHeaders"]["content-type"] == "application/xml"
    read = s3.get_object(**bucket, Key="data")
    assert (read["ContentType"], read["Body"].read()) == ("binary/octet-stream", b"data")


def test_write_and_deletion_can_require_the_current_object(s3, bucket):
    tag = s3.put_object(**bucket, Key="k", Body=b"1")["ETag"]
    for work in (lambda **more: s3.put_object(Body=b"2", **more), s3.delete_object):
        error = error_of(work, **bucket, Key="k", IfMatch="other")
        assert (error["Code"], error["Message"]) == ("PreconditionFailed", CONDITION)
        assert error["Condition"] == "If-Match"
        assert error_of(work, **bucket, Key="absent", IfMatch="other")["Code"] == "NoSuchKey"
    for body in (b"2", b"33", b"444"):
        given = {1: tag, 2: tag.strip('"'), 3: tag[1:]}[len(body)]  # quotes are optional
        tag = s3.put_object(**bucket, Key="k", Body=body, IfMatch=given)["ETag"]
    s3.delete_object(**bucket, Key="k", IfMatch=tag)
    assert s3.list_objects_v2(**bucket)["KeyCount"] == 0


def test_write_can_require_that_there_is_no_object(s3, bucket):
    s3.put_object(**bucket, Key="k", Body=b"1", IfNoneMatch="*")
    error = error_of(s3.put_object, **bucket, Key="k", Body=b"2", IfNoneMatch="*")
    assert (error["Code"], error["Message"]) == ("PreconditionFailed", CONDITION)
    assert error["Condition"] == "If-None-Match"


def upload(s3, key, *bodies):
    """Upload parts; return the arguments that complete the upload."""
    made = s3.create_multipart_upload(Bucket="lab", Key=key, ContentType="application/json")
    assert (made["Bucket"], made["Key"]) == ("lab", key)
    named = {"Bucket": "lab", "Key": key, "UploadId": made["UploadId"]}
    parts = [
        {"PartNumber": number, "ETag": s3.upload_part(**named, PartNumber=number, Body=body)["ETag"]}
        for number, body in enumerate(bodies, 1)
    ]
    return {**named, "MultipartUpload": {"Parts": parts}}


@pytest.mark.parametrize("written_by", ["put", "upload"])
def test_upload_can_require_that_there_is_no_object(s3, bucket, written_by):
    if written_by == "put":
        s3.put_object(**bucket, Key="k", Body=b"1")
    else:
        s3.complete_multipart_upload(**upload(s3, "k", b"1"))
    error = error_of(s3.complete_multipart_upload, **upload(s3, "k", b"0" * PART, b"1"), IfNoneMatch="*")
    assert (error["Code"], error["Message"]) == ("PreconditionFailed", CONDITION)
    assert error["Condition"] == "If-None-Match"


def test_completed_upload_can_be_completed_again(s3, bucket):
    completion = upload(s3, "k", b"0" * PART, b"1")
    first = s3.complete_multipart_upload(**completion)
    again = s3.complete_multipart_upload(**completion, IfNoneMatch="*")
    assert first["ETag"] == again["ETag"]


def test_upload_replaces_the_object_of_its_key(s3, bucket):
    for body in (b"older", b"newer"):
        s3.complete_multipart_upload(**upload(s3, "k", body))
    read = s3.get_object(**bucket, Key="k")
    assert (read["Body"].read(), read["ContentType"]) == (b"newer", "application/json")


def test_bucket_tags_are_replaced_as_a_whole_and_absent_tags_are_an_error(s3, bucket):
    for tags in ({"one": "1"}, {"two": "2", "three": "", "my:aws:tag": "allowed"}):
        rows = [{"Key": key, "Value": value} for key, value in tags.items()]
        s3.put_bucket_tagging(**bucket, Tagging={"TagSet": rows})
        assert {row["Key"]: row["Value"] for row in s3.get_bucket_tagging(**bucket)["TagSet"]} == tags
    s3.put_bucket_tagging(**bucket, Tagging={"TagSet": []})
    error = error_of(s3.get_bucket_tagging, **bucket)
    assert (error["Code"], error["Message"]) == ("NoSuchTagSet", "The TagSet does not exist")
    assert error["BucketName"] == "lab"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("a", "a"), "Cannot provide multiple Tags with the same key"),
        (("aws:owner",), "System tags cannot be added/updated by requester"),
    ],
)
def test_repeated_and_reserved_bucket_tags_are_rejected(s3, bucket, keys, message):
    rows = [{"Key": key, "Value": str(number)} for number, key in enumerate(keys)]
    error = error_of(s3.put_bucket_tagging, **bucket, Tagging={"TagSet": rows})
    assert (error["Code"], error["Message"]) == ("InvalidTag", message)
