"""Every launch rejection as real HTTP (status 400, 500, 503, or 200 with errors), parsed by botocore."""

from collections.abc import Iterator
from typing import Any

import pytest

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    CloudGpuError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
)
from cloudgpu.plan.launch_error_codes import rule_for_error
from tests.unit.aws.resources.launch_wire import Wire, deleted, fleet, instances, refused, serve, terminated

FLEET = handler("aws:ec2/fleet:Fleet")
INPUTS = {
    "type": "instant",
    "terminateInstances": True,
    "launchTemplateConfigs": [
        {
            "launchTemplateSpecification": {"launchTemplateId": "lt-1", "version": "$Latest"},
            "overrides": [{"instanceType": "p3dn.24xlarge", "subnetId": "subnet-1"}],
        }
    ],
    "targetCapacitySpecification": {"defaultTargetCapacityType": "on-demand", "totalTargetCapacity": 2.0},
    "onDemandOptions": {"minTargetCapacity": 2.0, "singleAvailabilityZone": True},
    "tags": {},
}
RUNNING = {"i-a": "running", "i-b": "running"}

ROWS: list[tuple[str, type[CloudGpuError], str]] = [
    ("InsufficientInstanceCapacity", CapacityError, "zone"),
    ("InsufficientHostCapacity", CapacityError, "zone"),
    ("InsufficientReservedInstanceCapacity", CapacityError, "zone"),
    ("InsufficientCapacityOnOutpost", CapacityError, "zone"),
    ("ReservationCapacityExceeded", CapacityError, "zone"),
    ("UnfulfillableCapacity", CapacityError, "zone"),
    ("InsufficientFreeAddressesInSubnet", CapacityError, "zone"),
    ("SpotMaxPriceTooLow", CapacityError, "zone"),
    ("MaxSpotInstanceCountExceeded", QuotaError, "pool"),
    ("VcpuLimitExceeded", QuotaError, "pool"),
    ("InstanceLimitExceeded", QuotaError, "pool"),
    ("MaxFleetCountExceeded", QuotaError, "region"),
    ("AddressLimitExceeded", QuotaError, "region"),
    ("Unsupported", NotOfferedError, "zone"),
    ("InvalidInstanceType", NotOfferedError, "type"),
    ("UnauthorizedOperation", AuthError, "stop"),
    ("AuthFailure", AuthError, "stop"),
    ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", AuthError, "stop"),
    ("OptInRequired", AuthError, "stop"),
    ("PendingVerification", AuthError, "stop"),
    ("ExpiredToken", AuthError, "stop"),
    ("RequestExpired", AuthError, "stop"),
    ("InvalidAMIID.NotFound", BadRequestError, "stop"),
    ("InvalidAMIID.Unavailable", BadRequestError, "stop"),
    ("InvalidKeyPair.NotFound", BadRequestError, "stop"),
    ("InvalidSubnetID.NotFound", BadRequestError, "stop"),
    ("InvalidParameterCombination", BadRequestError, "stop"),
    ("IdempotentParameterMismatch", BadRequestError, "stop"),
]
AGAIN = ["RequestLimitExceeded", "ServiceUnavailable", "InternalError", "Unavailable"]


@pytest.fixture(scope="module")
def served() -> Iterator[Wire]:
    wire = Wire()
    stop = serve(wire)
    yield wire
    stop()


@pytest.fixture(scope="module")
def clients(served: Wire) -> Any:
    """Built once: reading the description of EC2 takes longer than most tests."""
    return connect(CloudEndpoint(served.url, "key", "secret"), "us-east-1")


@pytest.fixture
def wire(served: Wire) -> Wire:
    served.asked.clear()
    served.script = {
        "DeleteFleets": [deleted()],
        "DescribeInstances": [instances({})],
        "TerminateInstances": [terminated()],
    }
    return served


@pytest.fixture
def launch(wire: Wire, clients: Any, clock: Any) -> Any:
    ctx = HandlerContext(clients, clock, "token-1", {"cloudgpu:token": "tok"})
    return lambda: FLEET.create(ctx, FLEET.check(INPUTS))


# What nobody knows is a bad request as 400, and a passing fault as 500 or 503: see below.
CALLS = [(*row, status) for row in ROWS for status in (400, 500, 503) if status == 400 or row[1] is not BadRequestError]


@pytest.mark.parametrize(("code", "error", "skips", "status"), CALLS, ids=[f"{one[0]}-{one[3]}" for one in CALLS])
def test_rejected_create_fleet_maps_to_error_and_skip_scope(  # noqa: PLR0917  a row of the table
    wire: Wire, launch: Any, clock: Any, code: str, error: type, skips: str, status: int
) -> None:
    wire.script["CreateFleet"] = [refused(code, status)]
    with pytest.raises(CloudGpuError) as caught:
        launch()
    assert type(caught.value) is error
    assert rule_for_error(caught.value).skips == skips
    assert wire.actions == ["CreateFleet"]
    assert clock.monotonic() == 0


@pytest.mark.parametrize(("code", "error", "skips"), ROWS, ids=[row[0] for row in ROWS])
def test_errors_in_fleet_response_map_to_error_and_skip_scope(
    wire: Wire, launch: Any, clock: Any, code: str, error: type, skips: str
) -> None:
    wire.script["CreateFleet"] = [fleet(errors=[(code, "none for you")])]
    with pytest.raises(CloudGpuError) as caught:
        launch()
    assert type(caught.value) is error
    assert rule_for_error(caught.value).skips == skips
    assert "none for you" in caught.value.message
    assert wire.actions == ["CreateFleet", "DeleteFleets", "DescribeInstances"]
    assert clock.monotonic() == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [*((code, status) for code in AGAIN for status in (400, 500, 503)), ("Unheard", 500), ("Unheard", 503)],
)
def test_retryable_rejection_is_retried_with_same_token(
    wire: Wire, launch: Any, clock: Any, code: str, status: int
) -> None:
    wire.script["CreateFleet"] = [refused(code, status), refused(code, status), fleet(["i-a", "i-b"])]
    wire.script["DescribeInstances"] = [instances(RUNNING)]
    assert launch().id == "fleet-1"
    assert [one["ClientToken"] for one in wire.of("CreateFleet")] == ["token-1"] * 3
    assert 0 < clock.monotonic() < 2


@pytest.mark.parametrize("code", AGAIN)
def test_retryable_fleet_error_is_retried_with_next_token(wire: Wire, launch: Any, clock: Any, code: str) -> None:
    wire.script["CreateFleet"] = [fleet(errors=[(code, "busy")]), fleet(["i-a", "i-b"])]
    wire.script["DescribeInstances"] = [instances({}), instances(RUNNING)]
    assert launch().id == "fleet-1"
    assert [one["ClientToken"] for one in wire.of("CreateFleet")] == ["token-1", "token-1-1"]
    assert 0 < clock.monotonic() < 5


def test_endless_throttling_raises_throttled_error(wire: Wire, launch: Any, clock: Any) -> None:
    wire.script["CreateFleet"] = [refused("RequestLimitExceeded", 503)]
    with pytest.raises(ThrottledError):
        launch()
    assert {one["ClientToken"] for one in wire.of("CreateFleet")} == {"token-1"}
    assert 60 < clock.monotonic() <= 120


def test_invalid_instance_type_parameter_means_not_offered(wire: Wire, launch: Any) -> None:
    wire.script["CreateFleet"] = [refused("InvalidParameterValue", 400, "Invalid value 'p3.x' for InstanceType.")]
    with pytest.raises(NotOfferedError, match=r"\(InvalidParameterValue\)") as caught:
        launch()
    assert rule_for_error(caught.value).skips == "type"


def test_partial_fleet_termination_is_confirmed_before_error(wire: Wire, launch: Any, clock: Any) -> None:
    wire.script["CreateFleet"] = [fleet(["i-a"], [("InsufficientInstanceCapacity", "only one")])]
    wire.script["DescribeInstances"] = [
        instances({"i-a": "running"}),
        instances({"i-a": "running"}),
        instances({"i-a": "shutting-down"}),
        instances({"i-a": "shutting-down"}),
        instances({"i-a": "terminated"}),
    ]
    with pytest.raises(CapacityError) as caught:
        launch()
    assert caught.value.launched == ("i-a",)
    assert wire.actions == [
        "CreateFleet",
        "DeleteFleets",
        "DescribeInstances",
        "DescribeInstances",
        "TerminateInstances",
        "DescribeInstances",
        "DescribeInstances",
        "DescribeInstances",
    ]
    assert wire.of("DeleteFleets")[0]["TerminateInstances"] == "true"
    assert wire.of("TerminateInstances")[0]["InstanceId.1"] == "i-a"


def test_unconfirmed_partial_fleet_termination_is_no_capacity_error(wire: Wire, launch: Any, clock: Any) -> None:
    """The next candidate must not be tried, because the instances may still be billed."""
    wire.script["CreateFleet"] = [fleet(["i-a"], [("InsufficientInstanceCapacity", "only one")])]
    wire.script["DescribeInstances"] = [instances({"i-a": "shutting-down"})]
    with pytest.raises(CloudGpuError) as caught:
        launch()
    assert not isinstance(caught.value, CapacityError)
    assert "timed out" in caught.value.message
    assert clock.monotonic() > 600
