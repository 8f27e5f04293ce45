"""Recorded API calls: secrets never reach the file, and a full disk never disturbs the call."""

import json
import stat
from io import BytesIO

import boto3
import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber

from cloudgpu.aws.session.recording import DROPPED, RECORDING_VARIABLE, CallRecorder, recorder_for

SECRET = "hunter2-wJalrXUtnFEMI"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----"


def recorded(tmp_path, service, operation, parameters, answer, error=""):
    """Make one call that a stub answers, and return the lines of the recording."""
    path = tmp_path / "calls.jsonl"
    client = boto3.client(service, "us-east-1", aws_access_key_id="AKIAX", aws_secret_access_key="no")
    CallRecorder(path).attach(client, service)
    with Stubber(client) as stub:
        if error:
            stub.add_client_error(operation, error, "not allowed", 403)
        else:
            stub.add_response(operation, answer)
        try:
            getattr(client, operation)(**parameters)
        except client.exceptions.ClientError:
            assert error
    return [json.loads(line) for line in path.read_text().splitlines()], path


def test_call_is_recorded_with_its_parameters_and_answer(tmp_path):
    answer = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/ann", "UserId": "AIDA"}
    (call,), path = recorded(tmp_path, "sts", "get_caller_identity", {}, answer)
    assert (call["service"], call["region"], call["operation"]) == ("sts", "us-east-1", "GetCallerIdentity")
    assert call["status"] == 200
    assert {name: call["answer"][name] for name in answer} == answer
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_error_is_recorded_with_its_code_and_status(tmp_path):
    (call,), _ = recorded(tmp_path, "ec2", "describe_vpcs", {"DryRun": True}, {}, "UnauthorizedOperation")
    assert (call["parameters"], call["status"]) == ({"DryRun": True}, 403)
    assert call["answer"]["Error"]["Code"] == "UnauthorizedOperation"


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "answer"),
    [
        (
            "ec2",
            "create_launch_template",
            {"LaunchTemplateName": "plain", "LaunchTemplateData": {"UserData": SECRET}},
            {"LaunchTemplate": {"LaunchTemplateName": "plain"}},
        ),
        ("ec2", "create_key_pair", {"KeyName": "plain"}, {"KeyName": "plain", "KeyMaterial": SECRET}),
        ("ec2", "get_console_output", {"InstanceId": "plain"}, {"InstanceId": "plain", "Output": KEY}),
        ("ssm", "get_parameter", {"Name": "plain"}, {"Parameter": {"Type": "SecureString", "Value": SECRET}}),
        (
            "ssm",
            "start_session",
            {"Target": "plain"},
            {"SessionId": "plain", "TokenValue": SECRET, "StreamUrl": SECRET},
        ),
        ("ecr", "get_authorization_token", {}, {"authorizationData": [{"authorizationToken": SECRET}]}),
        (
            "sts",
            "get_session_token",
            {},
            {
                "Credentials": {
                    "AccessKeyId": "ASIA" + "X" * 16,
                    "SecretAccessKey": SECRET,
                    "SessionToken": SECRET,
                    "Expiration": 0,
                }
            },
        ),
        (
            "s3",
            "get_object",
            {"Bucket": "plain", "Key": "plain"},
            {"Body": StreamingBody(BytesIO(SECRET.encode()), 21)},
        ),
        ("s3", "put_object", {"Bucket": "plain", "Key": "plain", "Body": SECRET.encode()}, {}),
        ("ec2", "describe_tags", {}, {"Tags": [{"Key": "u", "Value": f"https://b/k?X-Amz-Signature={SECRET}"}]}),
    ],
)
def test_secret_is_dropped_before_the_call_is_written(tmp_path, service, operation, parameters, answer):
    (call,), path = recorded(tmp_path, service, operation, parameters, answer)
    assert DROPPED in json.dumps(call)
    assert SECRET not in path.read_text()


def test_public_ssm_parameter_keeps_its_value(tmp_path):
    answer = {"Parameter": {"Type": "String", "Value": "ami-0a1b2c3d4e5f60718"}}
    (call,), _ = recorded(tmp_path, "ssm", "get_parameter", {"Name": "plain"}, answer)
    assert call["answer"]["Parameter"] == answer["Parameter"]


def test_unwritable_recording_does_not_disturb_the_call(tmp_path):
    path = tmp_path / "missing folder" / "calls.jsonl"
    client = boto3.client("ec2", "us-east-1", aws_access_key_id="AKIAX", aws_secret_access_key="no")
    CallRecorder(path).attach(client, "ec2")
    with Stubber(client) as stub:
        stub.add_response("describe_vpcs", {"Vpcs": []})
        assert client.describe_vpcs()["Vpcs"] == []
    assert not path.exists()


def test_nothing_is_recorded_without_the_variable():
    assert recorder_for({}) is None
    assert recorder_for({RECORDING_VARIABLE: "/tmp/calls"}) is not None
