"""Requests of a session against the service models, and the report that no caller can swallow."""

import boto3
import pytest
from botocore.exceptions import ParamValidationError

from cloudgpu.aws.service_model.report import REPORT_VARIABLE, record_mismatches, report_file
from cloudgpu.aws.service_model.values import Mismatch
from cloudgpu.aws.session.session import CloudEndpoint, Session


@pytest.fixture
def report(tmp_path, monkeypatch):
    path = tmp_path / "report"
    monkeypatch.setenv(REPORT_VARIABLE, str(path))
    return path


@pytest.fixture
def session(report, no_real_credentials):
    source = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name="us-east-1")
    return Session(source, CloudEndpoint("http://127.0.0.1:9", "testing", "testing"), "us-east-1")


def test_enumeration_value_that_botocore_lets_through_is_reported(session, report):
    url = session.client("s3").generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "key"})
    assert url
    assert not report.exists()
    session.client("s3").generate_presigned_url(
        "put_object", {"Bucket": "bucket", "Key": "key", "StorageClass": "COLD", "ACL": "private"}
    )
    assert report.read_text() == "request s3 PutObject: StorageClass: 'COLD' is not a value of StorageClass\n"


def test_request_is_reported_before_botocore_refuses_it(session, report):
    with pytest.raises(ParamValidationError):
        session.client("s3").generate_presigned_url("get_object", {"Bucket": "bucket", "Kee": "key"})
    assert report.read_text().splitlines() == [
        "request s3 GetObject: Kee: unknown member of GetObjectRequest",
        "request s3 GetObject: Key: required member of GetObjectRequest is missing",
    ]


def test_nothing_is_checked_unless_the_environment_names_a_file(session, report, monkeypatch):
    monkeypatch.delenv(REPORT_VARIABLE)
    session.client("s3").generate_presigned_url("put_object", {"Bucket": "b", "Key": "k", "StorageClass": "COLD"})
    assert not report.exists()
    assert report_file({}) is None
    assert report_file({REPORT_VARIABLE: ""}) is None


def test_report_is_appended_to_and_bounded(tmp_path):
    report = tmp_path / "report"
    record_mismatches(report, "call", [])
    assert not report.exists()
    record_mismatches(report, "first", [Mismatch("A", "wrong \u2603")])
    record_mismatches(report, "second", [Mismatch(f"B[{number}]", "wrong") for number in range(1000)])
    lines = report.read_text(encoding="ascii").splitlines()
    assert lines[0] == "first: A: wrong \\u2603"
    assert len(lines) == 22
    assert lines[-1] == "second: 980 more"
