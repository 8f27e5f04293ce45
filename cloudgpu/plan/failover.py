"""Failover, pure: what each of AWS's refusals means, and which candidates are left after it. One table decides."""

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
"""What a refusal rules out: this type in this zone and market; every zone of the region's quota pool; the region; the
type everywhere; everything (stop); or nothing (the same call with the same token again, after a pause)."""


@dataclass(frozen=True)
class Rule:
    """What one of AWS's codes means. `said` is how people are told, after the candidate's name."""

    error: type[LaunchError] | type[CloudError]
    skips: Skips
    said: str


_ROWS: Final[tuple[tuple[Rule, tuple[str, ...]], ...]] = (
    (
        Rule(CapacityError, "zone", "no capacity"),
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
    (Rule(CapacityError, "zone", "no free address in the subnet"), ("InsufficientFreeAddressesInSubnet",)),
    (Rule(CapacityError, "zone", "spot price above the highest offered"), ("SpotMaxPriceTooLow",)),
    (
        Rule(CapacityError, "zone", "spot capacity withdrawn"),
        ("SpotInstanceTermination", "SpotInstanceShutdown"),
    ),
    # `Server.InternalError` and the like: AWS ended a node of the gang while it started.
    (Rule(CapacityError, "zone", "a node ended while starting"), ("Server",)),
    (
        Rule(QuotaError, "pool", "quota reached"),
        ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded"),
    ),
    (
        Rule(QuotaError, "region", "quota reached"),
        (
            "MaxFleetCountExceeded",
            "VpcLimitExceeded",
            "InternetGatewayLimitExceeded",
            "SecurityGroupLimitExceeded",
            "VolumeLimitExceeded",
        ),
    ),
    # Elastic IPs are for gangs with several interfaces a node, which no other zone needs fewer of; IAM's limits are
    # the same in every region.
    (Rule(QuotaError, "stop", "quota reached"), ("AddressLimitExceeded", "LimitExceeded", "ResourceLimitExceeded")),
    (Rule(NotOfferedError, "zone", "not offered"), ("Unsupported",)),
    (Rule(NotOfferedError, "type", "retired or unknown type"), ("InvalidInstanceType",)),
    (
        Rule(ThrottledError, "again", "throttled"),
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
        Rule(AuthError, "stop", "not allowed"),
        (
            "ExpiredToken",
            "ExpiredTokenException",
            "RequestExpired",
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
TABLE: Final[Mapping[str, Rule]] = {code: rule for rule, codes in _ROWS for code in codes}

REFUSED: Final = Rule(BadRequestError, "stop", "refused")
"""What is not in the table is wrong with the request itself: it would be refused anywhere."""

FIRST_PAUSE_S: Final = 30.0
LONGEST_PAUSE_S: Final = 300.0
_GROWTH: Final = 1.6
_JITTER: Final = 0.2


def known(code: str) -> Rule | None:
    """The row of a code, or of its part before the dot (`AuthFailure.SomeReason`); None when there is none."""
    return TABLE.get(code) or TABLE.get(code.partition(".")[0])


def rule_of(err: CloudGpuError) -> Rule:
    """What an error means for the candidates that are left: by its code, and where that is unknown by its class."""
    found = known(getattr(err, "code", ""))
    if found is not None:
        return found
    if isinstance(err, QuotaError):
        return Rule(QuotaError, "pool", "quota reached")
    if isinstance(err, (CapacityError, NotOfferedError)):
        said = "no capacity" if isinstance(err, CapacityError) else "not offered"
        return Rule(type(err), "zone", said)
    return REFUSED


def left(candidates: Sequence[Candidate], refused: Candidate, skips: Skips) -> tuple[Candidate, ...]:
    """Those that may still be had after `refused` was."""
    return tuple(one for one in candidates if not _ruled_out(one, refused, skips))


def _ruled_out(one: Candidate, refused: Candidate, skips: Skips) -> bool:
    if skips in ("stop", "again"):
        return skips == "stop"
    shared = _SHARED[skips]
    return shared(one) == shared(refused)


def _pool(one: Candidate) -> tuple[str, str, Quota]:
    """What shares one quota: a market of a family of types, in one region."""
    return one.region, one.market, quota_of(one.instance_type, one.market)


_SHARED: Final[Mapping[Skips, Callable[[Candidate], Hashable]]] = {
    "zone": lambda one: (one.instance_type, one.zone, one.market),
    "pool": _pool,
    "region": lambda one: one.region,
    "type": lambda one: one.instance_type,
}
"""What candidates have in common that one refusal rules out together."""


def pauses_s(jitter: Callable[[], float]) -> Iterator[float]:
    """Seconds to wait before each new round: growing to a limit, shaken so that several callers fall out of step.

    `jitter` gives figures from 0 to 1.
    """
    pause = FIRST_PAUSE_S
    while True:
        yield min(LONGEST_PAUSE_S, pause * (1 + _JITTER * (2 * jitter() - 1)))
        pause = min(LONGEST_PAUSE_S, pause * _GROWTH)
