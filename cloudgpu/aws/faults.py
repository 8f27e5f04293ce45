"""What AWS says when it refuses, as errors of cloudgpu. `ClientError` never leaves this package."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from botocore import exceptions as boto

from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    CloudError,
    CloudGpuError,
    LaunchError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
)

UNREACHABLE = "Unreachable"
"""`CloudError.code` when no answer came: nobody knows whether the call had an effect."""

_REPORT = "`cloudgpu --debug` notes the calls; please report this"
_SERVER_FAULT = 500
_NOT_IMPLEMENTED = 501

_CLASSES: Mapping[type[LaunchError] | type[CloudError], frozenset[str]] = {
    CapacityError: frozenset(
        {
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacityOnOutpost",
            "InsufficientCapacity",
            "ReservationCapacityExceeded",
            "UnfulfillableCapacity",
            "InsufficientFreeAddressesInSubnet",
            "SpotMaxPriceTooLow",
        }
    ),
    QuotaError: frozenset(
        {
            "MaxSpotInstanceCountExceeded",
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "MaxFleetCountExceeded",
            "AddressLimitExceeded",
            "VpcLimitExceeded",
            "InternetGatewayLimitExceeded",
            "SecurityGroupLimitExceeded",
            "VolumeLimitExceeded",
            "LimitExceeded",
            "ResourceLimitExceeded",
        }
    ),
    NotOfferedError: frozenset({"Unsupported", "InvalidInstanceType"}),
    ThrottledError: frozenset(
        {
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "RequestThrottled",
            "TooManyRequestsException",
            "EC2ThrottledException",
            "SlowDown",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "Unavailable",
            "PriorRequestNotComplete",
        }
    ),
    AuthError: frozenset(
        {
            "UnauthorizedOperation",
            "AuthFailure",
            "OptInRequired",
            "PendingVerification",
            "Blocked",
            "AccessDenied",
            "AccessDeniedException",
            "InvalidClientTokenId",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidSignatureException",
            "UnrecognizedClientException",
            "MissingAuthenticationToken",
            "IncompleteSignature",
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
        }
    ),
}
_BY_CODE = {code: error for error, codes in _CLASSES.items() for code in codes}

_TAKEN = re.compile(r"Duplicate$|AlreadyExists|EntityAlreadyExists")
_GONE = re.compile(r"NotFound(Exception)?$|^NoSuch|\.Unknown$|^404$|DoesNotExist$")
_IN_USE = re.compile(r"^DependencyViolation$|InUse$|^DeleteConflict$|^ResourceInUse|^IncorrectState$")

_HINTS: Mapping[str, str] = {
    "VcpuLimitExceeded": "ask for more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "InstanceLimitExceeded": "ask for more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "MaxSpotInstanceCountExceeded": "ask for more spot vCPUs in Service Quotas (P4, P3, P2: L-7212CCBC, "
    "P5: L-C4BD4855, G and VT: L-3819A6DF), or use on-demand",
    "AddressLimitExceeded": "release unused Elastic IPs, or ask for more in Service Quotas (L-0263D0A3)",
    "InvalidInstanceType": "AWS has retired this type, or never had it: see `cloudgpu plan` for ones that are offered",
    "Unsupported": "try another zone or type",
    "SpotMaxPriceTooLow": "use on-demand",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "an administrator has to run once: "
    "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    "OptInRequired": "the account has to accept the offer or enable the region first",
    "PendingVerification": "AWS is still verifying the account for this region; try again in some hours",
    "ExpiredToken": "log in again, for instance `aws sso login`",
    "ExpiredTokenException": "log in again, for instance `aws sso login`",
    "RequestExpired": "set this machine's clock",
    "SignatureDoesNotMatch": "check the secret key, and this machine's clock",
}


@contextmanager
def typed(doing: str) -> Iterator[None]:
    """Turn whatever botocore raises in the block into an error of cloudgpu. `doing` says what was tried.

    Raises:
        CloudGpuError: As `refusal` and `_unanswered` decide.
    """
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError) as err:
        raise fault(err, doing) from err


def fault(err: boto.ClientError | boto.BotoCoreError, doing: str) -> CloudGpuError:
    """The error of cloudgpu for one of botocore."""
    if isinstance(err, boto.ClientError):
        return _refused(err, doing)
    return _unanswered(err, doing)


def refusal(code: str, message: str, doing: str, *, request_id: str = "") -> LaunchError | CloudError:
    """The error for one of AWS's error codes, as the table above has it; an unknown code is a bad request."""
    root = code.split(".", maxsplit=1)[0]
    error = _BY_CODE.get(code) or _BY_CODE.get(root) or BadRequestError
    text = f"{doing}: {message.rstrip('.')} ({code})"
    hint = _HINTS.get(code) or _HINTS.get(root) or _hint(code, error)
    if issubclass(error, LaunchError):
        return error(text, code=code, hint=hint)
    return error(text, code=code, request_id=request_id, hint=hint)


def is_gone(err: CloudGpuError) -> bool:
    """Whether AWS said that the thing does not exist."""
    return isinstance(err, CloudError) and bool(_GONE.search(err.code))


def is_in_use(err: CloudGpuError) -> bool:
    """Whether AWS said that something else still needs the thing."""
    return isinstance(err, CloudError) and bool(_IN_USE.search(err.code))


def is_taken(err: CloudGpuError) -> bool:
    """Whether AWS said that something of this name exists already."""
    return isinstance(err, CloudError) and bool(_TAKEN.search(err.code))


def _hint(code: str, error: type[LaunchError] | type[CloudError]) -> str:
    if _TAKEN.search(code):
        return "something of this name exists already: choose another cluster name, or `cloudgpu down` the old one"
    if error is AuthError:
        return "check `aws sts get-caller-identity` and the permissions of that identity"
    if error is ThrottledError:
        return "AWS asks for patience; run it again in a minute"
    return ""


def _refused(err: boto.ClientError, doing: str) -> LaunchError | CloudError:
    said = err.response.get("Error", {})
    answer = err.response.get("ResponseMetadata", {})
    code, message = str(said.get("Code", "")), str(said.get("Message", ""))
    request_id = str(answer.get("RequestId", ""))
    status = answer.get("HTTPStatusCode", 0)
    known = code in _BY_CODE or code.split(".", maxsplit=1)[0] in _BY_CODE
    if status >= _SERVER_FAULT and status != _NOT_IMPLEMENTED and not known:
        return ThrottledError(
            f"{doing}: {message} ({code or status})",
            code=code,
            request_id=request_id,
            hint="AWS is in trouble; try later",
        )
    return refusal(code, message, doing, request_id=request_id)


def _unanswered(err: boto.BotoCoreError, doing: str) -> CloudGpuError:
    if isinstance(err, (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError)):
        return AuthError(f"{doing}: {err}", hint="run `aws configure`, or set AWS_PROFILE")
    if isinstance(err, (boto.ProfileNotFound, boto.TokenRetrievalError, boto.SSOTokenLoadError)):
        return AuthError(f"{doing}: {err}", hint="see `aws configure list-profiles`, or log in again")
    if isinstance(err, (boto.ParamValidationError, boto.UnknownServiceError)):
        return BadRequestError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
    if isinstance(err, (boto.HTTPClientError, boto.ConnectionError)):
        return CloudError(f"{doing}: no answer: {err}", code=UNREACHABLE, hint="check the network, then run it again")
    return CloudError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
