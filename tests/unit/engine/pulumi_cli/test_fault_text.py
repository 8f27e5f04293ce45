"""Pass errors through a text-only channel: our errors are restored, AWS errors are mapped by code."""

import pytest
from pulumi.automation import CommandResult
from pulumi.automation.errors import create_command_error

from cloudgpu.engine.direct.deployment import is_definite_failure
from cloudgpu.engine.error_text import decode_error, encode_error
from cloudgpu.engine.pulumi_cli.stacks import error_of_failed_run
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    BusyError,
    CapacityError,
    CloudError,
    NotOfferedError,
    QuotaError,
    StateError,
    ThrottledError,
    UnsupportedError,
)

FLEET = "urn:pulumi:demo::cloudgpu::cloudgpu:infra:Gang$aws:ec2/fleet:Fleet::demo"
STACK = "urn:pulumi:demo::cloudgpu::pulumi:pulumi:Stack::cloudgpu-demo"
SDK = (
    "1 error occurred:\n\t* creating EC2 Fleet: operation error EC2: CreateFleet, https response error "
    "StatusCode: {status}, RequestID: 1b2c-3d, api error {code}: {message}\n\n"
)


@pytest.mark.parametrize(
    "err",
    [
        CapacityError("no room [yet]", code="InsufficientInstanceCapacity"),
        QuotaError("16 vCPUs", code="VcpuLimitExceeded"),
        NotOfferedError("retired", code="InvalidInstanceType"),
        UnsupportedError("no property x", code="UnsupportedProperty"),
        AuthError("no key"),
        CloudError("no answer", code="Unreachable"),
        BadRequestError("two\nlines", code="InvalidKey.Format"),
        StateError("full"),
    ],
)
def test_encoded_errors_round_trip_with_type_and_code(err):
    for text in (encode_error(err), f"rpc error: {encode_error(err)}"):
        found = decode_error(text)
        assert type(found) is type(err)
        assert found.message.endswith(err.message)
        assert getattr(found, "code", "") == getattr(err, "code", "")


def test_hint_is_restored_from_error_code():
    assert "L-417A185B" in decode_error(encode_error(QuotaError("16 vCPUs", code="VcpuLimitExceeded"))).hint


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "VcpuLimitExceeded", QuotaError),
        (500, "InsufficientInstanceCapacity", CapacityError),
        (400, "Unsupported", NotOfferedError),
        (403, "UnauthorizedOperation", AuthError),
        (503, "RequestLimitExceeded", ThrottledError),
        (500, "SomethingNew", ThrottledError),
        (400, "SomethingNew", BadRequestError),
    ],
)
def test_pulumi_plugin_errors_are_mapped_by_code(status, code, kind):
    found = decode_error(SDK.format(status=status, code=code, message="You asked for too much."), "fleet 'demo'")
    assert type(found) is kind
    assert found.code == code
    assert found.message.startswith("fleet 'demo': You asked for too much")
    if isinstance(found, CloudError):
        assert found.request_id == "1b2c-3d"


def test_text_without_error_code_is_classified():
    lost = decode_error('Post "https://ec2.us-east-1.amazonaws.com/": dial tcp: lookup ec2: no such host', "fleet")
    assert (type(lost), lost.code) == (CloudError, "Unreachable")
    assert type(decode_error("No valid credential sources found")) is AuthError
    assert decode_error("Duplicate resource URN") is None
    assert type(decode_error("oh [SystemExitError] no")) is CloudError


def ended(stderr="", stdout=""):
    return create_command_error(CommandResult(stdout, stderr, 255))


def test_most_decisive_of_several_failures_is_raised():
    errors = [
        (FLEET, SDK.format(status=500, code="InsufficientInstanceCapacity", message="No room.")),
        (STACK, "something of the program"),
        (FLEET, SDK.format(status=400, code="VcpuLimitExceeded", message="16 vCPUs.")),
    ]
    assert type(error_of_failed_run(errors, ended(), "pulumi up of demo")) is QuotaError
    assert type(error_of_failed_run(errors[:2], ended(), "pulumi up of demo")) is CapacityError
    assert "Fleet 'demo'" in error_of_failed_run(errors[:1], ended(), "pulumi up of demo").message


def test_program_error_shows_last_lines_of_traceback():
    traceback = "x" * 2000 + "\nRunError: cloudgpu:zone is 'here'"
    found = error_of_failed_run([(STACK, traceback)], ended(), "pulumi up of demo")
    assert (type(found), found.code) == (BadRequestError, "ProgramError")
    assert found.message.startswith("pulumi up of demo: ... x")
    assert found.message.endswith("cloudgpu:zone is 'here'")
    assert len(found.message) < 700


@pytest.mark.parametrize(
    "told", ["rpc error: code = Unavailable desc = error reading from server: EOF", "something nobody foresaw"]
)
def test_unknown_failure_text_is_not_definite_failure(told):
    found = error_of_failed_run([(FLEET, told)], ended(), "pulumi up of demo")
    assert type(found) is CloudError
    assert not is_definite_failure(found)


@pytest.mark.parametrize(
    ("stderr", "kind"),
    [
        ("error: the stack is currently locked by 1 lock(s).", BusyError),
        ("error: no stack named 'demo' found", StateError),
        ("error: getting secrets manager: incorrect passphrase", StateError),
        ("error: failed to load checkpoint: place 1: unexpected end of JSON input", StateError),
        ("error: loading stack: snapshot integrity failure; it was already written", StateError),
        ("error: no resource plugin 'pulumi-resource-aws' found in the workspace", CloudError),
        ('error: read ".pulumi/stacks": lookup bucket.s3.amazonaws.com: no such host', CloudError),
        ("error: one\nerror: the last one", CloudError),
        ("", CloudError),
    ],
)
def test_cli_stderr_is_mapped_to_error_type(stderr, kind):
    found = error_of_failed_run((), ended(stderr), "pulumi up of demo")
    assert type(found) is kind
    assert found.hint
    if "last" in stderr:
        assert found.message == "pulumi up of demo: the last one"
