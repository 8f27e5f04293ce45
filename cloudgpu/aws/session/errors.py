"""Map AWS error responses to cloudgpu errors. `ClientError` never leaves this package."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from cloudgpu.decoding import malformed_as
from cloudgpu.errors import AuthError, BadRequestError, CloudError, CloudGpuError, LaunchError, ThrottledError
from cloudgpu.plan import launch_error_codes

UNREACHABLE = "Unreachable"
"""`CloudError.code` of a call without a usable response: it may or may not have taken effect."""

_REPORT = "run with `cloudgpu --debug` to log the calls, and report this"
_SERVER_FAULT = 500
_NOT_IMPLEMENTED = 501

_EXPIRED: Mapping[str, str] = {
    "ExpiredToken": "credentials expired",
    "ExpiredTokenException": "credentials expired",
    "RequestExpired": "credentials expired",
    "AuthFailure": "credentials expired or not valid",
}
"""Prefixes for AWS messages that do not mention credentials: EC2 reports an expired session as an expired request."""

_NO_SUCH_TYPE = re.compile(r"instance ?type", re.IGNORECASE)
"""Matches the message of an `InvalidParameterValue` that was caused by the instance type."""

_TAKEN = re.compile(r"Duplicate$|AlreadyExists|EntityAlreadyExists|^ConflictException$")
_GONE = re.compile(r"NotFound(Exception)?$|^NoSuch|\.Unknown$|^404$|DoesNotExist$")
_IN_USE = re.compile(r"^DependencyViolation$|InUse$|^DeleteConflict$|^ResourceInUse|^IncorrectState$")

_HINTS: Mapping[str, str] = {
    "VcpuLimitExceeded": "ask for more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "InstanceLimitExceeded": "ask for more vCPUs in Service Quotas (P on-demand: L-417A185B, G and VT: L-DB2E81BA)",
    "MaxSpotInstanceCountExceeded": "ask for more spot vCPUs in Service Quotas (P4, P3, P2: L-7212CCBC, "
    "P5: L-C4BD4855, G and VT: L-3819A6DF), or use on-demand",
    "AddressLimitExceeded": "release unused Elastic IPs, or ask for more in Service Quotas (L-0263D0A3)",
    "InvalidInstanceType": "AWS has retired this type or never offered it: `cloudgpu plan` lists the offers",
    "Unsupported": "try another zone or type",
    "SpotMaxPriceTooLow": "use on-demand",
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": "an administrator has to run once: "
    "`aws iam create-service-linked-role --aws-service-name spot.amazonaws.com`",
    "OptInRequired": "the account has to accept the offer or enable the region first",
    "PendingVerification": "AWS is still verifying the account for this region; try again in a few hours",
    "ExpiredToken": "log in again, for example `aws sso login`",
    "ExpiredTokenException": "log in again, for example `aws sso login`",
    "RequestExpired": "log in again, for example `aws sso login`; if that is fresh, set this machine's clock",
    "AuthFailure": "log in again, for example `aws sso login`, or check the keys",
    "SignatureDoesNotMatch": "check the secret key, and this machine's clock",
}


_EXPIRED_PREFIX = "credentials expired: "
_CREDENTIALS: tuple[tuple[tuple[type[boto.BotoCoreError], ...], str, str, str], ...] = (
    (
        (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError),
        "NoCredentials",
        "",
        "run `aws configure`, or set AWS_PROFILE",
    ),
    ((boto.ProfileNotFound,), "ProfileNotFound", "", "see `aws configure list-profiles`"),
    (
        (boto.SSOError, boto.TokenRetrievalError, boto.NoAuthTokenError),
        "UnauthorizedSSOTokenError",
        _EXPIRED_PREFIX,
        "`aws sso login` with your profile, then run it again",
    ),
    ((boto.LoginError,), "LoginRefreshRequired", _EXPIRED_PREFIX, "`aws login` with your profile, then run it again"),
)
"""Credential errors raised by boto3 itself: error classes, cloudgpu's code, message prefix, hint."""


@contextmanager
def typed(doing: str) -> Iterator[None]:
    """Convert botocore exceptions in the block to cloudgpu errors. `doing` describes the operation.

    Raises:
        CloudGpuError: The error that `fault` returns.
    """
    try:
        yield
    except (boto.ClientError, boto.BotoCoreError) as err:
        raise fault(err, doing) from err
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        # botocore's parsers raise these when a response holds, say, text in place of a number.
        if isinstance(err, ResponseParserError) or not _is_of_botocore(err):
            raise
        message = f"{doing}: unreadable response ({type(err).__name__})"
        raise CloudError(
            message, code=UNREACHABLE, hint="AWS or a proxy returned a malformed response; run the command again"
        ) from err
    except ResponseParserError as err:
        message = f"{doing}: unreadable response: {str(err).splitlines()[0]}"
        raise CloudError(
            message, code=UNREACHABLE, hint="AWS or a proxy returned a malformed response; run the command again"
        ) from err


def _is_of_botocore(err: Exception) -> bool:
    """Return True if botocore raised the error, rather than our own code in the block."""
    trace = err.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("botocore."):
            return True
        trace = trace.tb_next
    return False


@contextmanager
def answered(doing: str) -> Iterator[None]:
    """Like `typed`, and convert malformed responses to a `CloudError`; for blocks that parse responses.

    An endpoint, a proxy or a newer AWS may omit or misspell fields that botocore does not check, and botocore raises a
    bare `ValueError` for a malformed number. Keep other code out of the block, or its bugs are misreported.

    Raises:
        CloudGpuError: As `typed`; code `UNREACHABLE` for a malformed response, because the call may have had an effect.
    """
    with typed(doing), malformed_as(partial(_malformed, doing)):
        yield


def _malformed(doing: str, why: str) -> CloudError:
    return CloudError(f"{doing}: malformed response: {why}", code=UNREACHABLE, hint=_REPORT)


def fault(err: boto.ClientError | boto.BotoCoreError, doing: str) -> CloudGpuError:
    """Return the cloudgpu error for a botocore exception."""
    if isinstance(err, boto.ClientError):
        return _refused(err, doing)
    return _unanswered(err, doing)


def refusal(code: str, message: str, doing: str, *, request_id: str = "") -> LaunchError | CloudError:
    """Return the error for an AWS error code, from the failover table. An unknown code is a bad request."""
    rule = launch_error_codes.known(_code(code, message)) or launch_error_codes.REFUSED
    words = message.rstrip(".")
    text = f"{doing}: {_EXPIRED[code]}: {words} ({code})" if code in _EXPIRED else f"{doing}: {words} ({code})"
    hint = _HINTS.get(code) or _HINTS.get(_root(_code(code, message))) or _hint(code, rule.error)
    if issubclass(rule.error, LaunchError):
        return rule.error(text, code=_code(code, message), hint=hint)
    return rule.error(text, code=code, request_id=request_id, hint=hint)


def _code(code: str, message: str) -> str:
    """Return the effective error code. For a launch, an unknown instance type has the code of any invalid parameter."""
    return "InvalidInstanceType" if code == "InvalidParameterValue" and _NO_SUCH_TYPE.search(message) else code


def _root(code: str) -> str:
    return code.partition(".")[0]


def is_gone(err: CloudGpuError) -> bool:
    """Return True if AWS reported that the resource does not exist."""
    return isinstance(err, CloudError) and bool(_GONE.search(err.code))


def is_in_use(err: CloudGpuError) -> bool:
    """Return True if AWS reported that something else still uses the resource."""
    return isinstance(err, CloudError) and bool(_IN_USE.search(err.code))


def is_taken(err: CloudGpuError) -> bool:
    """Return True if AWS reported that the name is already taken."""
    return isinstance(err, CloudError) and bool(_TAKEN.search(err.code))


def _hint(code: str, error: type[LaunchError] | type[CloudError]) -> str:
    if _TAKEN.search(code):
        return "the name is already in use: choose another cluster name, or delete the old cluster with `cloudgpu down`"
    if error is AuthError:
        return "check `aws sts get-caller-identity` and the permissions of that identity"
    if error is ThrottledError:
        return "AWS is throttling requests; run the command again in a minute"
    return ""


def _refused(err: boto.ClientError, doing: str) -> LaunchError | CloudError:
    error = err.response.get("Error", {})
    answer = err.response.get("ResponseMetadata", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    request_id = str(answer.get("RequestId", ""))
    status = answer.get("HTTPStatusCode", 0)
    if status >= _SERVER_FAULT and status != _NOT_IMPLEMENTED and launch_error_codes.known(code) is None:
        return ThrottledError(
            f"{doing}: {message} ({code or status})",
            code=code,
            request_id=request_id,
            hint="AWS returned a server error; try again in a few minutes",
        )
    return refusal(code, message, doing, request_id=request_id)


def _unanswered(err: boto.BotoCoreError, doing: str) -> CloudGpuError:
    for kinds, code, text, hint in _CREDENTIALS:
        if isinstance(err, kinds):
            return AuthError(f"{doing}: {text}{err}", code=code, hint=hint)
    if isinstance(err, (boto.ParamValidationError, boto.UnknownServiceError)):
        return BadRequestError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
    if isinstance(err, (boto.HTTPClientError, boto.ConnectionError)):
        return CloudError(f"{doing}: no answer: {err}", code=UNREACHABLE, hint="check the network, then run it again")
    return CloudError(f"{doing}: {err}", code=type(err).__name__, hint=_REPORT)
