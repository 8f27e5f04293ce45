"""The failover policy: which candidates remain after each launch error code."""

from datetime import date
from decimal import Decimal
from itertools import islice, pairwise

import pytest

from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    LaunchError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
)
from cloudgpu.plan import launch_error_codes
from cloudgpu.plan.plan import Candidate


def candidate(zone, instance_type="p3dn.24xlarge", market="on-demand"):
    return Candidate(
        instance_type, zone[:-1], zone, market, Decimal(1), date(2026, 7, 20), "V100", 8, Decimal(32), 1, "ami-1"
    )


REFUSED = candidate("us-east-1c")
SAME_POOL = candidate("us-east-1d")
SAME_FAMILY = candidate("us-east-1d", "p4d.24xlarge")
OTHER_FAMILY = candidate("us-east-1d", "g5.48xlarge")
SPOT = candidate("us-east-1c", market="spot")
ELSEWHERE = candidate("us-west-2b")
OTHERS = (SAME_POOL, SAME_FAMILY, OTHER_FAMILY, SPOT, ELSEWHERE)

EXPECTED = {
    # no capacity: this type in this zone and market
    "InsufficientInstanceCapacity": (CapacityError, OTHERS),
    "InsufficientHostCapacity": (CapacityError, OTHERS),
    "InsufficientReservedInstanceCapacity": (CapacityError, OTHERS),
    "InsufficientCapacityOnOutpost": (CapacityError, OTHERS),
    "ReservationCapacityExceeded": (CapacityError, OTHERS),
    "UnfulfillableCapacity": (CapacityError, OTHERS),
    "InsufficientFreeAddressesInSubnet": (CapacityError, OTHERS),
    "SpotMaxPriceTooLow": (CapacityError, OTHERS),
    # a quota: its pool in this region
    "VcpuLimitExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "InstanceLimitExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "MaxSpotInstanceCountExceeded": (QuotaError, (OTHER_FAMILY, SPOT, ELSEWHERE)),
    "MaxFleetCountExceeded": (QuotaError, (ELSEWHERE,)),
    "AddressLimitExceeded": (QuotaError, (ELSEWHERE,)),
    "LimitExceeded": (QuotaError, ()),
    # not offered: here, or anywhere
    "Unsupported": (NotOfferedError, OTHERS),
    "InvalidInstanceType": (NotOfferedError, (SAME_FAMILY, OTHER_FAMILY)),
    # the same call again
    "RequestLimitExceeded": (ThrottledError, OTHERS),
    "ServiceUnavailable": (ThrottledError, OTHERS),
    "InternalError": (ThrottledError, OTHERS),
    "Unavailable": (ThrottledError, OTHERS),
    # nothing that another zone cures
    "UnauthorizedOperation": (AuthError, ()),
    "AuthFailure": (AuthError, ()),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (AuthError, ()),
    "OptInRequired": (AuthError, ()),
    "PendingVerification": (AuthError, ()),
    "InvalidAMIID.NotFound": (BadRequestError, ()),
    "InvalidAMIID.Malformed": (BadRequestError, ()),
    "InvalidKeyPair.NotFound": (BadRequestError, ()),
    "InvalidSubnetID.NotFound": (BadRequestError, ()),
    "InvalidParameterCombination": (BadRequestError, ()),
    "IdempotentParameterMismatch": (BadRequestError, ()),
    "SomethingNobodyKnows": (BadRequestError, ()),
}


@pytest.mark.parametrize("code", EXPECTED)
def test_error_code_maps_to_error_class_and_remaining_candidates(code):
    error, remaining = EXPECTED[code]
    rule = launch_error_codes.find_rule(code) or launch_error_codes.DEFAULT_RULE
    assert rule.error is error
    assert launch_error_codes.remaining_candidates(OTHERS, REFUSED, rule.skips) == remaining
    assert (rule.skips == "again") == (error is ThrottledError)


def test_spot_quota_error_skips_only_that_spot_pool_and_region():
    rule = launch_error_codes.RULES_BY_CODE["MaxSpotInstanceCountExceeded"]
    others = (candidate("us-east-1d", market="spot"), REFUSED, candidate("us-west-2b", market="spot"))
    assert launch_error_codes.remaining_candidates(others, SPOT, rule.skips) == others[1:]


def test_p5_has_a_separate_spot_quota():
    rule = launch_error_codes.RULES_BY_CODE["MaxSpotInstanceCountExceeded"]
    p5 = candidate("us-east-1c", "p5.48xlarge", "spot")
    assert launch_error_codes.remaining_candidates((p5,), SPOT, rule.skips) == (p5,)
    assert (
        launch_error_codes.remaining_candidates((candidate("us-east-1d", "p4de.24xlarge", "spot"),), SPOT, rule.skips)
        == ()
    )


def test_unknown_error_code_falls_back_to_the_error_class():
    assert launch_error_codes.rule_for_error(CapacityError("none", code="Novelty")).skips == "zone"
    assert launch_error_codes.rule_for_error(NotOfferedError("none")).skips == "zone"
    assert launch_error_codes.rule_for_error(QuotaError("none")).skips == "pool"
    assert (
        launch_error_codes.rule_for_error(LaunchError("none", code="Client.InvalidSnapshot.NotFound")).skips == "stop"
    )
    assert launch_error_codes.rule_for_error(BadRequestError("none", code="InvalidParameterValue")).skips == "stop"


def test_node_terminated_during_startup_moves_to_the_next_zone():
    rule = launch_error_codes.rule_for_error(CapacityError("ended", code="Server.InternalError"))
    assert (rule.skips, rule.summary) == ("zone", "a node was terminated during startup")


def test_retry_pauses_grow_from_30_s_to_5_minutes():
    pauses = list(islice(launch_error_codes.pauses_s(lambda: 0.5), 10))
    assert pauses[0] == 30
    assert pauses[-1] == 300
    assert all(later >= earlier for earlier, later in pairwise(pauses))
    assert len({pause for pause in pauses if pause < 300}) == 5


@pytest.mark.parametrize("shaken", [0.0, 1.0])
def test_retry_pauses_have_jitter_and_never_exceed_5_minutes(shaken):
    pauses = list(islice(launch_error_codes.pauses_s(lambda: shaken), 10))
    assert pauses[0] == pytest.approx(30 * (0.8 if shaken == 0 else 1.2))
    assert max(pauses) <= 300
