from typing import Any

import pytest
from botocore import exceptions as boto

from cloudgpu.aws.session.errors import (
    UNREACHABLE,
    convert_errors,
    error_from_botocore,
    error_from_code,
    is_gone,
    is_in_use,
)
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    CloudError,
    LaunchError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
)


def client_error(code: str, message: str = "said so", status: int = 400) -> boto.ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "RequestId": "req-1"},
    }
    return boto.ClientError(answer, "SomeCall")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("UnfulfillableCapacity", CapacityError),
        ("InsufficientFreeAddressesInSubnet", CapacityError),
        ("SpotMaxPriceTooLow", CapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("VcpuLimitExceeded", QuotaError),
        ("AddressLimitExceeded", QuotaError),
        ("Unsupported", NotOfferedError),
        ("InvalidInstanceType", NotOfferedError),
        ("RequestLimitExceeded", ThrottledError),
        ("InternalError", ThrottledError),
        ("UnauthorizedOperation", AuthError),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", AuthError),
        ("InvalidClientTokenId", AuthError),
        ("InvalidAMIID.NotFound", BadRequestError),
        ("IdempotentParameterMismatch", BadRequestError),
        ("SomethingNobodyKnows", BadRequestError),
    ],
)
def test_error_code_determines_error_class(code: str, expected: type[LaunchError | CloudError]) -> None:
    err = error_from_code(code, "said so.", "launching")
    assert type(err) is expected
    assert err.code == code
    assert err.message == f"launching: said so ({code})"


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "AuthFailure"])
def test_expired_credentials_are_reported_as_expired(code: str) -> None:
    err = error_from_code(code, "The security token included in the request is expired", "deleting fleet")
    assert type(err) is AuthError
    assert err.message.startswith("deleting fleet: credentials expired")
    assert err.message.endswith(f"({code})")
    assert "log in again" in err.hint


def test_missing_service_linked_role_is_not_reported_as_expired() -> None:
    err = error_from_code("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "not permitted", "launching")
    assert "expired" not in err.message
    assert "aws iam create-service-linked-role" in err.hint


def test_invalid_instance_type_parameter_is_not_offered_error() -> None:
    err = error_from_code("InvalidParameterValue", "Invalid value 'zz9.bogus' for InstanceType.", "launching")
    assert type(err) is NotOfferedError
    assert err.code == "InvalidInstanceType"
    assert "retired" in err.hint
    other = error_from_code("InvalidParameterValue", "Invalid IAM Instance Profile name", "launching")
    assert type(other) is BadRequestError


def test_capacity_error_with_http_500_stays_capacity_error() -> None:
    assert isinstance(
        error_from_botocore(client_error("InsufficientInstanceCapacity", status=500), "launching"), CapacityError
    )


def test_unknown_server_error_is_retryable() -> None:
    err = error_from_botocore(client_error("Weird", status=503), "asking")
    assert isinstance(err, ThrottledError)
    assert err.request_id == "req-1"


def test_unimplemented_operation_is_not_reported_as_throttling() -> None:
    """Repeating the call cannot help."""
    err = error_from_botocore(client_error("NotImplemented", status=501), "asking")
    assert not isinstance(err, ThrottledError)


def test_convert_errors_keeps_original_as_cause() -> None:
    original = client_error("AccessDenied")
    with pytest.raises(AuthError) as caught, convert_errors("asking"):
        raise original
    assert caught.value.__cause__ is original
    assert caught.value.hint


def test_convert_errors_passes_other_exceptions_through() -> None:
    with pytest.raises(KeyError), convert_errors("asking"):
        raise KeyError("bug")


@pytest.mark.parametrize(
    "lost",
    [
        boto.EndpointConnectionError(endpoint_url="https://x"),
        boto.ConnectTimeoutError(endpoint_url="https://x"),
        boto.ReadTimeoutError(endpoint_url="https://x"),
        boto.ConnectionClosedError(endpoint_url="https://x"),
    ],
)
def test_connection_failures_are_unreachable_not_absent(lost: boto.BotoCoreError) -> None:
    err = error_from_botocore(lost, "asking")
    assert type(err) is CloudError
    assert err.code == UNREACHABLE
    assert not is_gone(err)


@pytest.mark.parametrize("err", [boto.NoCredentialsError(), boto.ProfileNotFound(profile="nobody")])
def test_missing_credentials_raise_auth_error(err: boto.BotoCoreError) -> None:
    assert isinstance(error_from_botocore(err, "asking"), AuthError)


@pytest.mark.parametrize(
    "code",
    [
        "InvalidInstanceID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidPlacementGroup.Unknown",
        "InvalidLaunchTemplateName.NotFoundException",
        "NoSuchEntity",
        "NoSuchBucket",
        "404",
        "fleetIdDoesNotExist",
    ],
)
def test_not_found_codes_mean_resource_is_absent(code: str) -> None:
    assert is_gone(error_from_code(code, "", ""))


@pytest.mark.parametrize("code", ["AccessDenied", "DependencyViolation", "InvalidParameterValue", ""])
def test_other_codes_do_not_mean_resource_is_absent(code: str) -> None:
    assert not is_gone(error_from_code(code, "", ""))


@pytest.mark.parametrize("code", ["DependencyViolation", "InvalidGroup.InUse", "InvalidPlacementGroup.InUse"])
def test_in_use_codes_are_recognized(code: str) -> None:
    assert is_in_use(error_from_code(code, "", ""))


def test_taken_name_error_suggests_another_cluster_name() -> None:
    assert "another cluster name" in error_from_code("InvalidGroup.Duplicate", "exists", "making").hint
    assert "another cluster name" in error_from_code("EntityAlreadyExists", "exists", "making").hint


def test_quota_hint_names_quota_code() -> None:
    assert "L-417A185B" in error_from_code("VcpuLimitExceeded", "", "").hint


SCP = "User: arn:aws:iam::1:user/a is not authorized to perform: {} on resource: * with an explicit deny in a {}"
ENCODED = "You are not authorized to perform this operation. Encoded authorization failure message: 4OyW-x"


@pytest.mark.parametrize(
    ("message", "hints", "not_in_hint"),
    [
        (
            SCP.format("ec2:RunInstances", "service control policy: arn:aws:organizations::1:policy/o-1/p-1"),
            ("denied by a rule in the service control policy of your organization", "`tags`"),
            "instance_profile",
        ),
        (
            SCP.format("ec2:RunInstances", "permissions boundary"),
            ("denied by a rule in the permissions boundary",),
            "organization",
        ),
        (SCP.format("iam:CreateRole", "permissions boundary"), ("set `instance_profile`", "expiry_schedule_role"), ""),
        (
            "not authorized to perform: iam:CreateInstanceProfile because no identity-based policy allows the action",
            ("set `instance_profile`", "no identity-based policy allows this: ask your administrator"),
            "organization",
        ),
        (ENCODED, ("decode-authorization-message", "`tags`"), "organization"),
        (
            SCP.format("ec2:CreateVolume", "service control policy") + ". " + ENCODED,
            ("decode-auth", "service control"),
            "",
        ),
        ("You are not authorized to perform this operation.", ("get-caller-identity",), "tags"),
    ],
)
def test_denial_names_the_policy_and_what_helps(message: str, hints: tuple[str, ...], not_in_hint: str) -> None:
    err = error_from_code("UnauthorizedOperation", message, "launching")
    assert all(hint in err.hint for hint in hints), err.hint
    assert not not_in_hint or not_in_hint not in err.hint
