"""Requests of a session against the service models, and the report that no caller can swallow."""

from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ParamValidationError

from cloudgpu.aws import service_model as report_module
from cloudgpu.aws.service_model import REPORT_VARIABLE, Mismatch, record_mismatches, report_file
from cloudgpu.aws.session import session as sessions
from cloudgpu.aws.session.session import CloudEndpoint, Session
from cloudgpu.backends import rehearsal
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.clock import SystemClock
from cloudgpu.engine.plugin.__main__ import clients_factory
from cloudgpu.settings import load


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


def test_requests_are_checked_only_by_an_installed_hook(session, report, monkeypatch):
    monkeypatch.setattr(sessions, "client_hooks", [])
    session.client("s3").generate_presigned_url("put_object", {"Bucket": "b", "Key": "k", "StorageClass": "COLD"})
    assert not report.exists()


@pytest.mark.parametrize("connect", ["command", "plugin"])
def test_connection_to_the_rehearsal_cloud_installs_the_checks_once(connect, report, monkeypatch, tmp_path):
    hooks = []
    monkeypatch.setattr(sessions, "client_hooks", hooks)
    monkeypatch.setattr(report_module, "client_hooks", hooks)
    endpoint = CloudEndpoint("http://127.0.0.1:9", "testing", "testing")
    running = SimpleNamespace(url=endpoint.url, access_key_id="testing", secret_access_key="testing")
    monkeypatch.setattr(rehearsal, "start_rehearsal", lambda _: running)
    environ = {"AWS_ENDPOINT_URL": endpoint.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    settings, clock = load(flags={}, environ={"LOGNAME": "ann"}, cwd=tmp_path), SystemClock()
    environment = SimpleNamespace(settings=settings, environ={}, clock=clock, calls=ApiCallLog(None, clock))

    def session():
        if connect == "plugin":
            return clients_factory(environ)("us-east-1")
        account = rehearsal.connect_rehearsal(environment)
        return account.session("us-east-1")

    session()
    session().client("s3").generate_presigned_url("put_object", {"Bucket": "b", "Key": "k", "StorageClass": "COLD"})
    assert len(hooks) == 1
    assert report.read_text() == "request s3 PutObject: StorageClass: 'COLD' is not a value of StorageClass\n"


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
