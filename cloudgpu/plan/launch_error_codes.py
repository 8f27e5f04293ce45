"""Failover: map each AWS error code to the candidates that it rules out."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.catalog.prices_and_quotas import Quota, quota_of
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
from cloudgpu.plan.plan import Candidate

Skips = Literal["zone", "pool", "region", "type", "stop", "again"]
"""The candidates that an error rules out. `zone`: this type in this zone and market; `pool`: all candidates that share
the quota; `region`: the region; `type`: the type everywhere; `stop`: every candidate; `again`: none, because the call
can be retried after a pause."""


@dataclass(frozen=True)
class FailoverRule:
    """How failover reacts to an AWS error code. Messages show `summary` after the candidate's name."""

    error: type[LaunchError] | type[CloudError]
    skips: Skips
    summary: str


UNKNOWN_TYPE: Final = FailoverRule(NotOfferedError, "type", "retired or unknown type")
UNUSABLE_KEY: Final = FailoverRule(LaunchError, "stop", "a KMS key of the disks cannot be used")
WRONG_IMAGE: Final = FailoverRule(NotOfferedError, "type", "the image does not support the type")

_ROWS: Final[tuple[tuple[FailoverRule, tuple[str, ...]], ...]] = (
    (
        FailoverRule(CapacityError, "zone", "no capacity"),
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientCapacityOnHost",
            "InsufficientReservedInstanceCapacity",
            "InsufficientReservedInstancesCapacity",
            "InsufficientCapacityOnOutpost",
            "InsufficientCapacity",
            "IncompatibleHostRequirements",
            "UnavailableHostRequirements",
            "ReservationCapacityExceeded",
            "UnfulfillableCapacity",
        ),
    ),
    (FailoverRule(CapacityError, "zone", "no capacity for disks"), ("InsufficientVolumeCapacity",)),
    (FailoverRule(CapacityError, "zone", "no free address in the subnet"), ("InsufficientFreeAddressesInSubnet",)),
    (FailoverRule(CapacityError, "region", "no public addresses available"), ("InsufficientAddressCapacity",)),
    (FailoverRule(CapacityError, "zone", "spot price above the maximum price"), ("SpotMaxPriceTooLow",)),
    (
        FailoverRule(CapacityError, "zone", "spot capacity withdrawn"),
        (
            "SpotInstanceTermination",
            "SpotInstanceShutdown",
            "Server.SpotInstanceTermination",
            "Server.SpotInstanceShutdown",
        ),
    ),
    # `Server.InternalError`, `Server.ScheduledStop` and the like: AWS terminated a node during startup.
    (FailoverRule(CapacityError, "zone", "a node was terminated during startup"), ("Server",)),
    (
        FailoverRule(QuotaError, "pool", "quota reached"),
        ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded"),
    ),
    # The quota of NAT gateways applies to each zone.
    (FailoverRule(QuotaError, "zone", "quota reached"), ("NatGatewayLimitExceeded",)),
    (
        FailoverRule(QuotaError, "region", "quota reached"),
        (
            "AddressLimitExceeded",
            "HostLimitExceeded",
            "InternetGatewayLimitExceeded",
            "KeyPairLimitExceeded",
            "MaxFleetCountExceeded",
            "MaxIOPSLimitExceeded",
            "MaxSpotFleetRequestCountExceeded",
            "MaxTemplateLimitExceeded",
            "NetworkInterfaceLimitExceeded",
            "PlacementGroupLimitExceeded",
            "RequestResourceCountExceeded",
            "RouteTableLimitExceeded",
            "SecurityGroupLimitExceeded",
            "SubnetLimitExceeded",
            "VolumeLimitExceeded",
            "VpcEndpointLimitExceeded",
            "VpcLimitExceeded",
            "Client.VolumeLimitExceeded",
        ),
    ),
    # The limits of IAM apply to the whole account.
    (FailoverRule(QuotaError, "stop", "quota reached"), ("LimitExceeded", "ResourceLimitExceeded")),
    (FailoverRule(NotOfferedError, "zone", "not offered"), ("Unsupported",)),
    (FailoverRule(NotOfferedError, "zone", "disk type not offered"), ("VolumeTypeNotAvailableInZone",)),
    (
        FailoverRule(NotOfferedError, "zone", "zone not available to the account"),
        ("InvalidZone.NotFound", "InvalidAvailabilityZone"),
    ),
    (UNKNOWN_TYPE, ("InvalidInstanceType",)),
    (
        FailoverRule(NotOfferedError, "type", "more disks or interfaces than the type supports"),
        ("AttachmentLimitExceeded", "PrivateIpAddressLimitExceeded", "InvalidInterface.IpAddressLimitExceeded"),
    ),
    (FailoverRule(NotOfferedError, "type", "no encrypted disks for the type"), ("EncryptedVolumesNotSupported",)),
    (
        FailoverRule(ThrottledError, "again", "throttled"),
        (
            "RequestLimitExceeded",
            "Throttling",
            "ThrottlingException",
            "ThrottledException",
            "RequestThrottled",
            "RequestThrottledException",
            "RequestTimeout",
            "RequestTimeoutException",
            "TooManyRequestsException",
            "EC2ThrottledException",
            "SlowDown",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "Unavailable",
            "ConcurrentTagAccess",
            "PriorRequestNotComplete",
        ),
    ),
    (
        FailoverRule(AuthError, "stop", "not allowed"),
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
            "InvalidSecurity.RequestHasExpired",
            "TokenRefreshRequired",
            "AuthFailure",
            "UnauthorizedOperation",
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
        ),
    ),
    # Reasons of instances that ended while starting; no other zone would help.
    (
        UNUSABLE_KEY,
        (
            "Client.InternalError",
            "Client.InvalidKMSKey.InvalidState",
            "CustomerKeyHasBeenRevoked",
            "InvalidKMSKey.InvalidState",
        ),
    ),
    (
        FailoverRule(LaunchError, "stop", "the image's snapshot does not exist"),
        ("Client.InvalidSnapshot.NotFound",),
    ),
    (
        FailoverRule(LaunchError, "stop", "terminated by another user or program"),
        ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate", "Client.InstanceTerminated"),
    ),
    (FailoverRule(LaunchError, "stop", "powered off by itself"), ("Client.InstanceInitiatedShutdown",)),
)
RULES_BY_CODE: Final[Mapping[str, FailoverRule]] = {code: rule for rule, codes in _ROWS for code in codes}


@dataclass(frozen=True)
class _TextRule:
    """A rule for codes that AWS uses for several problems, which only the message distinguishes."""

    codes: frozenset[str]
    text: re.Pattern[str]
    rule: FailoverRule


_REQUEST_CODES: Final = frozenset(
    {
        "InvalidFleetConfig",
        "InvalidFleetConfiguration",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "InvalidRequest",
        "Unsupported",
        "UnsupportedOperation",
    }
)
_BY_TEXT: Final = (
    # In a fleet's errors, AWS reports a type that a zone does not offer as `InvalidFleetConfiguration`, even if
    # DescribeInstanceTypeOfferings lists the zone (github.com/aws/karpenter-provider-aws issues 476 and 2243).
    _TextRule(
        _REQUEST_CODES,
        re.compile(r"not (currently )?supported in (your|the) requested Availability Zone", re.IGNORECASE),
        FailoverRule(NotOfferedError, "zone", "not offered"),
    ),
    _TextRule(
        _REQUEST_CODES,
        re.compile(r"architecture|boot mode|Elastic Network Adapter \(?ENA|NVMe driver", re.IGNORECASE),
        WRONG_IMAGE,
    ),
    _TextRule(
        _REQUEST_CODES - {"Unsupported", "UnsupportedOperation"},
        re.compile(r"instance ?types?\b", re.IGNORECASE),
        UNKNOWN_TYPE,
    ),
)

DEFAULT_RULE: Final = FailoverRule(BadRequestError, "stop", "refused")
"""Rule for codes that are not in the table: the request itself is invalid and would be rejected everywhere."""

_ENDED_AT_START: Final = FailoverRule(LaunchError, "stop", "a node ended while starting")
"""Rule for state reasons (`Client.SomeReason`) that are not in the table."""

FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 300.0
_GROWTH: Final = 1.6
_JITTER: Final = 0.2


def find_rule(code: str, message: str = "") -> FailoverRule | None:
    """Return the rule for a code, which may depend on AWS's message; None if there is none.

    A code without a rule of its own has the rule of its part before the dot (`AuthFailure.SomeReason`). A state reason
    without one (`Client.SomeCode`) has the rule of the same error code, if that code is about a launch.
    """
    by_text = next((row.rule for row in _BY_TEXT if code in row.codes and row.text.search(message)), None)
    own = by_text or RULES_BY_CODE.get(code)
    if own is not None:
        return own
    root, _, rest = code.partition(".")
    if root in ("Client", "Server") and rest:
        of_code = RULES_BY_CODE.get(rest)
        if of_code is not None and issubclass(of_code.error, LaunchError):
            return of_code
    return _ENDED_AT_START if root == "Client" and rest else RULES_BY_CODE.get(root)


def rule_for_error(err: CloudGpuError) -> FailoverRule:
    """Return the rule for an error's code or, if the code is unknown, for its class; otherwise `DEFAULT_RULE`."""
    rule = find_rule(getattr(err, "code", ""), err.message)
    if rule is not None:
        return rule
    if isinstance(err, QuotaError):
        return FailoverRule(QuotaError, "pool", "quota reached")
    if isinstance(err, (CapacityError, NotOfferedError)):
        summary = "no capacity" if isinstance(err, CapacityError) else "not offered"
        return FailoverRule(type(err), "zone", summary)
    return DEFAULT_RULE


def remaining_candidates(candidates: Sequence[Candidate], refused: Candidate, skips: Skips) -> tuple[Candidate, ...]:
    """Return the candidates that remain after the launch of `refused` failed."""
    return tuple(candidate for candidate in candidates if not _ruled_out(candidate, refused, skips))


def _ruled_out(candidate: Candidate, refused: Candidate, skips: Skips) -> bool:
    if skips in ("stop", "again"):
        return skips == "stop"
    shared = _SHARED[skips]
    return shared(candidate) == shared(refused)


def _pool(candidate: Candidate) -> tuple[str, str, Quota]:
    """Return the key of the quota that the candidate counts against."""
    return candidate.region, candidate.market, quota_of(candidate.instance_type, candidate.market)


_SHARED: Final[Mapping[Skips, Callable[[Candidate], Hashable]]] = {
    "zone": lambda candidate: (candidate.instance_type, candidate.zone, candidate.market),
    "pool": _pool,
    "region": lambda candidate: candidate.region,
    "type": lambda candidate: candidate.instance_type,
}
"""Scope -> key function. An error rules out all candidates that share the failed candidate's key."""


def pauses_s(jitter: Callable[[], float]) -> Iterator[float]:
    """Yield the seconds to wait before each retry: exponential backoff with a limit and jitter.

    `jitter` returns numbers from 0 to 1.
    """
    pause = FIRST_PAUSE_S
    while True:
        yield min(LONGEST_PAUSE_S, pause * (1 + _JITTER * (2 * jitter() - 1)))
        pause = min(LONGEST_PAUSE_S, pause * _GROWTH)
