"""Failover: map each AWS error code to the candidates that it rules out."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.catalog.quotas import Quota, quota_of
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


_ROWS: Final[tuple[tuple[FailoverRule, tuple[str, ...]], ...]] = (
    (
        FailoverRule(CapacityError, "zone", "no capacity"),
        (
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "InsufficientCapacityOnOutpost",
            "InsufficientCapacity",
            "ReservationCapacityExceeded",
            "UnfulfillableCapacity",
        ),
    ),
    (FailoverRule(CapacityError, "zone", "no free address in the subnet"), ("InsufficientFreeAddressesInSubnet",)),
    (FailoverRule(CapacityError, "zone", "spot price above the maximum price"), ("SpotMaxPriceTooLow",)),
    (
        FailoverRule(CapacityError, "zone", "spot capacity withdrawn"),
        ("SpotInstanceTermination", "SpotInstanceShutdown"),
    ),
    # `Server.InternalError` and the like: AWS terminated a node of the cluster during startup.
    (FailoverRule(CapacityError, "zone", "a node was terminated during startup"), ("Server",)),
    (
        FailoverRule(QuotaError, "pool", "quota reached"),
        ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded"),
    ),
    (
        FailoverRule(QuotaError, "region", "quota reached"),
        (
            "MaxFleetCountExceeded",
            "VpcLimitExceeded",
            "InternetGatewayLimitExceeded",
            "SecurityGroupLimitExceeded",
            "VolumeLimitExceeded",
            "AddressLimitExceeded",
        ),
    ),
    # The limits of IAM apply to the whole account.
    (FailoverRule(QuotaError, "stop", "quota reached"), ("LimitExceeded", "ResourceLimitExceeded")),
    (FailoverRule(NotOfferedError, "zone", "not offered"), ("Unsupported",)),
    (FailoverRule(NotOfferedError, "type", "retired or unknown type"), ("InvalidInstanceType",)),
    (
        FailoverRule(ThrottledError, "again", "throttled"),
        (
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
        ),
    ),
    (
        FailoverRule(AuthError, "stop", "not allowed"),
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
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
)
RULES_BY_CODE: Final[Mapping[str, FailoverRule]] = {code: rule for rule, codes in _ROWS for code in codes}

DEFAULT_RULE: Final = FailoverRule(BadRequestError, "stop", "refused")
"""Rule for codes that are not in the table: the request itself is invalid and would be rejected everywhere."""

FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 300.0
_GROWTH: Final = 1.6
_JITTER: Final = 0.2


def find_rule(code: str) -> FailoverRule | None:
    """Return the rule for a code, or for its part before the dot (`AuthFailure.SomeReason`); None if there is none."""
    return RULES_BY_CODE.get(code) or RULES_BY_CODE.get(code.partition(".")[0])


def rule_for_error(err: CloudGpuError) -> FailoverRule:
    """Return the rule for an error's code or, if the code is unknown, for its class; otherwise `DEFAULT_RULE`."""
    rule = find_rule(getattr(err, "code", ""))
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
