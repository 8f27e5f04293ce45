"""Map AWS error responses to cloudgpu errors. No botocore exception leaves the `aws` package."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from cloudgpu.decoding import malformed_as
from cloudgpu.errors import AuthError, BadRequestError, CloudError, CloudGpuError, LaunchError, ThrottledError
from cloudgpu.plan import launch_error_codes
from cloudgpu.plan.launch_error_codes import FailoverRule

UNREACHABLE = "Unreachable"
"""`CloudError.code` for a call that received no usable response. The call may or may not have taken effect."""

RENEWABLE_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
"""Codes with which AWS rejects a call because of expired credentials, before the call has any effect."""
RENEWAL = "cloudgpu renewal"
"""Key of a response's metadata: the `CredentialSource` of the rejected call."""

_REPORT = "run the command again with `cloudgpu --debug` to log the API calls, and report this error"
_SERVER_FAULT = 500
_NOT_IMPLEMENTED = 501

_EXPIRED: Mapping[str, str] = {
    "ExpiredToken": "credentials expired",
    "ExpiredTokenException": "credentials expired",
    "RequestExpired": "credentials expired",
    "AuthFailure": "credentials expired or invalid",
}
"""Error code -> message prefix, for errors whose AWS message does not mention credentials.

For example, EC2 reports an expired session as an expired request.
"""

_DENIED_BY = re.compile(
    r"(explicit deny in an? |because no )((?:[a-z-]+ ){0,3}?(?:policy|permissions boundary))\b", re.IGNORECASE
)
"""Matches AWS's statement about the kind of policy, for example `explicit deny in a service control policy`."""
_ENCODED = re.compile(r"encoded authorization failure", re.IGNORECASE)
_ROLE_ACTION = re.compile(r"iam:(?:CreateRole|CreateInstanceProfile|AddRoleToInstanceProfile|PutRolePolicy|PassRole)\b")
_TAGS = "if it demands tags, set them with `tags` in the settings or the recipe"
_ORGANIZATION = ("service control policy", "resource control policy")
"""Policies of the organization, which overrule every policy of the account."""

_TAKEN = re.compile(r"Duplicate$|AlreadyExists|EntityAlreadyExists|^ConflictException$")
_GONE = re.compile(r"NotFound(Exception)?$|^NoSuch|\.Unknown$|^404$|DoesNotExist$")
_IN_USE = re.compile(r"^DependencyViolation$|InUse$|^DeleteConflict$|^ResourceInUse|^IncorrectState$")

_OTHER_IMAGE = "choose another image with `resources.image`, or omit it to use the default image of each type"
_KMS_KEY = (
    "enable the key and allow your identity, in the key's policy or by a grant, to use kms:CreateGrant, kms:Decrypt, "
    "kms:DescribeKey, kms:GenerateDataKeyWithoutPlaintext and kms:ReEncrypt* with it (for spot nodes, the role "
    "AWSServiceRoleForEC2Spot as well); or change the setting `kms_key_id`"
)
_HINTS: Mapping[str, str] = {
    "VcpuLimitExceeded": "request more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "InstanceLimitExceeded": "request more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "MaxSpotInstanceCountExceeded": "request more spot vCPUs in Service Quotas (P4, P3, P2: L-7212CCBC, "
    "P5: L-C4BD4855, G and VT: L-3819A6DF), or use on-demand",
    "AddressLimitExceeded": "release unused Elastic IPs, or request a higher limit in Service Quotas (L-0263D0A3)",
    "InvalidInstanceType": "choose a type that `cloudgpu plan` lists: AWS has retired this type or never offered it",
    "Unsupported": "try another zone or type",
    "InvalidFleetConfiguration": "try another zone or type",
    "VolumeTypeNotAvailableInZone": "try another zone",
    "InvalidZone.NotFound": "choose a zone that `cloudgpu plan` lists",
    "InvalidAvailabilityZone": "choose a zone that `cloudgpu plan` lists",
    "VolumeLimitExceeded": "delete unused volumes, or request more gp3 storage in Service Quotas (L-7A658B76)",
    "Client.VolumeLimitExceeded": "delete unused volumes, or request more gp3 storage in Service Quotas (L-7A658B76)",
    "NetworkInterfaceLimitExceeded": "delete unused network interfaces, or request more in Service Quotas (L-DF5E4CA3)",
    "VPCIdNotSpecified": "set `vpc_id`, set `create_vpc = true`, or run `aws ec2 create-default-vpc`",
    "DefaultVpcDoesNotExist": "set `vpc_id`, set `create_vpc = true`, or run `aws ec2 create-default-vpc`",
    "IdempotentInstanceTerminated": "delete the cluster with `cloudgpu down`, then run the command again",
    "InvalidAMIID.NotFound": _OTHER_IMAGE,
    "InvalidAMIID.Unavailable": _OTHER_IMAGE,
    "TagLimitExceeded": "remove some of your own tags: AWS allows 50 tags on a resource",
    "Client.InternalError": _KMS_KEY,
    "Client.InvalidKMSKey.InvalidState": _KMS_KEY,
    "InvalidKMSKey.InvalidState": _KMS_KEY,
    "CustomerKeyHasBeenRevoked": _KMS_KEY,
    "Client.InvalidSnapshot.NotFound": _OTHER_IMAGE,
    "Client.UserInitiatedShutdown": "find the caller of TerminateInstances in CloudTrail: a person or a clean-up "
    "program of the account terminated the node",
    "Client.InstanceInitiatedShutdown": "check that the expiry has not passed and that the image starts without "
    "powering off",
    "SpotMaxPriceTooLow": "use on-demand",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "ask an administrator to run once: "
    "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    "InvalidBlockDeviceMapping": "raise `resources.disk` to the size that the message names",
    "InvalidCapacityReservationId": "correct `resources.reservation`: the command "
    "`aws ec2 describe-capacity-reservations` lists the IDs of a region",
    "OptInRequired": "subscribe to the service, or enable the region for the account",
    "PendingVerification": "try again in a few hours: AWS is still verifying the account for this region",
    "ExpiredToken": "log in again, for example with `aws sso login`",
    "ExpiredTokenException": "log in again, for example with `aws sso login`",
    "RequestExpired": "log in again, for example with `aws sso login`; if you just did, correct this machine's clock",
    "AuthFailure": "log in again, for example with `aws sso login`, or check the keys",
    "SignatureDoesNotMatch": "check the secret key and this machine's clock",
}


_EXPIRED_PREFIX = "credentials expired: "
_CREDENTIALS: tuple[tuple[tuple[type[boto.BotoCoreError], ...], str, str, str], ...] = (
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
        "NoCredentials",
        "",
        "run `aws configure`, or set AWS_PROFILE",
    ),
    ((boto.ProfileNotFound,), "ProfileNotFound", "", "list the profiles with `aws configure list-profiles`"),
    (
        (boto.SSOError, boto.TokenRetrievalError, boto.NoAuthTokenError),
        "UnauthorizedSSOTokenError",
        _EXPIRED_PREFIX,
        "run `aws sso login` with your profile, then run the command again",
    ),
    (
        (boto.LoginError,),
        "LoginRefreshRequired",
        _EXPIRED_PREFIX,
        "run `aws login` with your profile, then run the command again",
    ),
)
"""Credential errors that boto3 raises without calling AWS: error classes, cloudgpu's code, message prefix, hint."""


@contextmanager
def convert_errors(doing: str) -> Iterator[None]:
    """Convert botocore exceptions raised in the block to cloudgpu errors, whose messages start with `doing`."""
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError) as err:
        raise error_from_botocore(err, doing) from err
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        # botocore's parsers raise these errors if a response contains, for example, text instead of a number.
        if isinstance(err, ResponseParserError) or not _is_of_botocore(err):
            raise
        message = f"{doing}: unreadable response ({type(err).__name__})"
        raise CloudError(
            message, code=UNREACHABLE, hint="run the command again: AWS or a proxy returned a malformed response"
        ) from err
    except ResponseParserError as err:
        message = f"{doing}: unreadable response: {str(err).splitlines()[0]}"
        raise CloudError(
            message, code=UNREACHABLE, hint="run the command again: AWS or a proxy returned a malformed response"
        ) from err


def _is_of_botocore(err: Exception) -> bool:
    """Return True if the error was raised by botocore, not by cloudgpu's own code inside the block."""
    trace = err.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("botocore."):
            return True
        trace = trace.tb_next
    return False


@contextmanager
def convert_response_errors(doing: str) -> Iterator[None]:
    """Convert botocore exceptions and malformed responses to cloudgpu errors, in a block that parses responses.

    An endpoint, a proxy or a newer version of AWS may omit or misspell fields that botocore does not check. For a
    malformed number, botocore raises a bare `ValueError`. Keep other code out of the block, because its bugs would be
    reported as malformed responses.
    """
    with convert_errors(doing), malformed_as(partial(_malformed, doing)):
        yield


def _malformed(doing: str, why: str) -> CloudError:
    return CloudError(f"{doing}: malformed response: {why}", code=UNREACHABLE, hint=_REPORT)


def error_from_botocore(err: boto.ClientError | boto.BotoCoreError, doing: str) -> CloudGpuError:
    """Return the cloudgpu error for a botocore exception."""
    if isinstance(err, boto.ClientError):
        return _from_error_response(err, doing)
    return _without_response(err, doing)


def error_from_code(code: str, message: str, doing: str, *, request_id: str = "") -> LaunchError | CloudError:
    """Return the error for an AWS error code.

    The rules in `launch_error_codes` determine its class, which is BadRequestError for an unknown code.
    """
    rule = launch_error_codes.find_rule(code, message) or launch_error_codes.DEFAULT_RULE
    # AWS reports an unknown instance type in a launch as `InvalidParameterValue`.
    effective = "InvalidInstanceType" if rule.summary == launch_error_codes.UNKNOWN_TYPE.summary else code
    reason = message.removeprefix(f"{code}: ").rstrip(".")
    text = f"{doing}: {_EXPIRED[code]}: {reason} ({code})" if code in _EXPIRED else f"{doing}: {reason} ({code})"
    hint = _HINTS.get(effective) or _HINTS.get(_root(effective)) or _hint(code, message, rule)
    if issubclass(rule.error, LaunchError):
        return rule.error(text, code=effective, hint=hint)
    err = rule.error(text, code=code, request_id=request_id, hint=hint)
    if isinstance(err, AuthError):
        err.renewable = code in RENEWABLE_CODES
    return err


def _root(code: str) -> str:
    return code.partition(".")[0]


def is_gone(err: CloudGpuError) -> bool:
    """Return True if AWS reported that the resource does not exist."""
    return isinstance(err, CloudError) and bool(_GONE.search(err.code))


def is_in_use(err: CloudGpuError) -> bool:
    """Return True if AWS reported that the resource is still in use."""
    return isinstance(err, CloudError) and bool(_IN_USE.search(err.code))


def is_taken(err: CloudGpuError) -> bool:
    """Return True if AWS reported that the name is already taken."""
    return isinstance(err, CloudError) and bool(_TAKEN.search(err.code))


def _hint(code: str, message: str, rule: FailoverRule) -> str:
    if rule.summary == launch_error_codes.WRONG_IMAGE.summary:
        return _OTHER_IMAGE
    if _TAKEN.search(code):
        return "choose another cluster name, or run `cloudgpu down` for the cluster that uses this name"
    if rule.error is AuthError:
        return (
            _denial_hint(message)
            or "run `aws sts get-caller-identity`, and check the permissions of the identity that it prints"
        )
    if rule.error is ThrottledError:
        return "run the command again in a minute: AWS is throttling requests"
    return ""


def _denial_hint(message: str) -> str:
    """Return which policy denies the call and what helps; empty if AWS's message does not say."""
    parts = []
    if _ROLE_ACTION.search(message):
        parts.append(
            "use existing roles: set `instance_profile`, and `expiry_schedule_role` or `expiry_schedule = false`"
        )
    found = _DENIED_BY.search(message)
    if found:
        kind = " ".join(found[2].lower().split())
        which = f"{kind} of your organization" if kind in _ORGANIZATION else kind
        if found[1].lower().startswith("explicit"):
            parts.append(f"denied by a rule in the {which}: {_TAGS}; otherwise ask your administrator")
        else:
            parts.append(f"no {which} allows this: ask your administrator")
    if _ENCODED.search(message):
        decode = "`aws sts decode-authorization-message --encoded-message TEXT` shows the policy that denies this"
        parts.append(decode if found else f"{decode}: {_TAGS}")
    return "; ".join(parts)


def _from_error_response(err: boto.ClientError, doing: str) -> LaunchError | CloudError:
    error = err.response.get("Error", {})
    metadata = err.response.get("ResponseMetadata", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    request_id = str(metadata.get("RequestId", ""))
    status = metadata.get("HTTPStatusCode", 0)
    if status >= _SERVER_FAULT and status != _NOT_IMPLEMENTED and launch_error_codes.find_rule(code) is None:
        return ThrottledError(
            f"{doing}: {message} ({code or status})",
            code=code,
            request_id=request_id,
            hint="try again in a few minutes: AWS returned a server error",
        )
    converted = error_from_code(code, message, doing, request_id=request_id)
    login: Any = metadata.get(RENEWAL)
    if login is not None and isinstance(converted, AuthError):
        converted.hint, converted.renewable = login.renewal, login.is_renewable
    return converted


def _without_response(err: boto.BotoCoreError, doing: str) -> CloudGpuError:
    for classes, code, text, hint in _CREDENTIALS:
        if isinstance(err, classes):
            return AuthError(f"{doing}: {text}{err}", code=code, hint=hint)
    if isinstance(err, (boto.ParamValidationError, boto.UnknownServiceError)):
        return BadRequestError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
    if isinstance(err, (boto.HTTPClientError, boto.ConnectionError)):
        return CloudError(
            f"{doing}: no response: {err}", code=UNREACHABLE, hint="check the network, then run the command again"
        )
    return CloudError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
