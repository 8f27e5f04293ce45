"""Launch fleets against scripted responses: requests, mapping of rejections to errors, and releases."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import ANY

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    CapacityError,
    CloudError,
    LaunchError,
    NotOfferedError,
    QuotaError,
    ThrottledError,
    UnsupportedError,
)
from cloudgpu.plan.launch_error_codes import rule_for_error

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
    "onDemandOptions": {
        "allocationStrategy": "lowestPrice",
        "minTargetCapacity": 2.0,
        "singleInstanceType": True,
        "singleAvailabilityZone": True,
    },
    "tags": {"Name": "n"},
}
TAGS = [
    {"Key": "Name", "Value": "n"},
    {"Key": "cloudgpu:intent", "Value": "token-1"},
    {"Key": "cloudgpu:token", "Value": "tok"},
]
SENT = {
    "ClientToken": "token-1",
    "Type": "instant",
    "LaunchTemplateConfigs": [
        {
            "LaunchTemplateSpecification": {"LaunchTemplateId": "lt-1", "Version": "$Latest"},
            "Overrides": [{"InstanceType": "p3dn.24xlarge", "SubnetId": "subnet-1"}],
        }
    ],
    "TargetCapacitySpecification": {"DefaultTargetCapacityType": "on-demand", "TotalTargetCapacity": 2},
    "OnDemandOptions": {
        "AllocationStrategy": "lowest-price",
        "MinTargetCapacity": 2,
        "SingleInstanceType": True,
        "SingleAvailabilityZone": True,
    },
    "TagSpecifications": [{"ResourceType": "fleet", "Tags": TAGS}, {"ResourceType": "instance", "Tags": TAGS}],
}
BOTH = ["i-a", "i-b"]


@pytest.fixture
def ctx(scripted, clock) -> HandlerContext:
    return HandlerContext(scripted, clock, "token-1", {"cloudgpu:token": "tok"})


def instance(instance_id: str, state: str, reason: str = "", fleet: str = "fleet-1") -> dict[str, Any]:
    found: dict[str, Any] = {
        "InstanceId": instance_id,
        "InstanceType": "p3dn.24xlarge",
        "LaunchTime": datetime(2026, 11, 21, tzinfo=UTC),
        "Placement": {"AvailabilityZone": "us-east-1c"},
        "State": {"Name": state},
        "Tags": [{"Key": "aws:ec2:fleet-id", "Value": fleet}],
    }
    if reason:
        found["StateReason"] = {"Code": reason, "Message": f"because of {reason}"}
    return found


class Script:
    """The scripted responses, in the order of the calls."""

    def __init__(self, scripted: Any) -> None:
        self.ec2, self.launch = scripted.stub("ec2"), scripted.stub("launch")

    def launched(self, ids: list[str], *errors: tuple[str, str], token: str = "token-1") -> None:
        answer: dict[str, Any] = {"FleetId": "fleet-1"}
        if ids:
            answer["Instances"] = [{"InstanceIds": ids, "InstanceType": "p3dn.24xlarge"}]
        if errors:
            answer["Errors"] = [{"ErrorCode": code, "ErrorMessage": text} for code, text in errors]
        sent = SENT if token == "token-1" else {**SENT, "ClientToken": token}
        self.launch.add_response("create_fleet", answer, sent)

    def refused(self, code: str, text: str = "said so", status: int = 400) -> None:
        self.launch.add_client_error("create_fleet", code, text, http_status_code=status, expected_params=SENT)

    def seen(self, *instances: dict[str, Any], filters: Any = ANY) -> None:
        answer = {"Reservations": [{"Instances": list(instances)}]}
        self.ec2.add_response("describe_instances", answer, {"Filters": filters})

    def released(self, *alive: dict[str, Any]) -> None:
        """Script the deletion of the fleet, the search for its members, and their termination."""
        self.ec2.add_response(
            "delete_fleets",
            {"SuccessfulFleetDeletions": [{"FleetId": "fleet-1"}]},
            {"FleetIds": ["fleet-1"], "TerminateInstances": True},
        )
        self.seen(*alive)
        if alive:
            self.seen(*alive)
            running = sorted(
                one["InstanceId"] for one in alive if one["State"]["Name"] not in ("shutting-down", "terminated")
            )
            if running:
                self.ec2.add_response("terminate_instances", {}, {"InstanceIds": running})
            self.seen(*({**one, "State": {"Name": "shutting-down"}} for one in alive))
            self.seen(*({**one, "State": {"Name": "terminated"}} for one in alive))


@pytest.fixture
def script(scripted) -> Any:
    yield Script(scripted)
    scripted.done()


def inputs() -> Any:
    return FLEET.check(INPUTS)


def test_create_waits_until_all_fleet_instances_run(script: Script, ctx: HandlerContext, clock) -> None:
    script.launched(["i-b", "i-a"])
    script.seen(instance("i-a", "pending"))  # the other one is not visible yet
    script.seen(instance("i-a", "running"), instance("i-b", "pending"))
    script.seen(instance("i-a", "running"), instance("i-b", "running"))
    made = FLEET.create(ctx, inputs())
    assert made.id == "fleet-1"
    assert made.outputs["fleetInstanceSets"] == [
        {"instanceIds": BOTH, "instanceType": "p3dn.24xlarge", "lifecycle": "on-demand", "platform": ""}
    ]
    assert clock.monotonic() > 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("UnfulfillableCapacity", CapacityError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("VcpuLimitExceeded", QuotaError),
        ("Unsupported", NotOfferedError),
        ("InvalidParameterValue", BadRequestError),
        ("UnauthorizedOperation", AuthError),
    ],
)
def test_empty_fleet_raises_mapped_error_and_is_deleted(
    script: Script, ctx: HandlerContext, code: str, expected: type
) -> None:
    script.launched([], (code, "none here"))
    script.released()
    with pytest.raises(expected) as caught:
        FLEET.create(ctx, inputs())
    assert type(caught.value) is expected
    assert caught.value.code == code
    assert "none here" in caught.value.message


def test_quota_error_outranks_capacity_error(script: Script, ctx: HandlerContext) -> None:
    script.launched([], ("InsufficientInstanceCapacity", "none"), ("VcpuLimitExceeded", "limit"))
    script.released()
    with pytest.raises(QuotaError):
        FLEET.create(ctx, inputs())


def test_partial_fleet_is_released_before_error(script: Script, ctx: HandlerContext) -> None:
    script.launched(["i-a"], ("InsufficientInstanceCapacity", "only one"))
    script.released(instance("i-a", "running"))
    with pytest.raises(CapacityError) as caught:
        FLEET.create(ctx, inputs())
    assert caught.value.launched == ("i-a",)


def test_retryable_response_gets_next_client_token(script: Script, ctx: HandlerContext, clock) -> None:
    """AWS returns the same response to the same token for a day."""
    script.launched([], ("RequestLimitExceeded", "Request limit exceeded."))
    script.released()
    script.launched(BOTH, token="token-1-1")
    script.seen(instance("i-a", "running"), instance("i-b", "running"))
    assert FLEET.create(ctx, inputs()).id == "fleet-1"
    assert 0 < clock.monotonic() < 5


def test_fleet_without_instances_or_reason_is_capacity_error(script: Script, ctx: HandlerContext) -> None:
    script.launched([])
    script.released()
    with pytest.raises(CapacityError, match="gave no reason"):
        FLEET.create(ctx, inputs())


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Server.InsufficientInstanceCapacity", CapacityError),
        ("Client.VolumeLimitExceeded", QuotaError),
        ("Client.InvalidSnapshot.NotFound", LaunchError),
        ("Server.SpotInstanceTermination", CapacityError),
        ("Server.InternalError", CapacityError),
        ("Server.ScheduledStop", CapacityError),
        ("Client.InternalError", LaunchError),
        ("Client.InstanceInitiatedShutdown", LaunchError),
        ("Client.UserInitiatedShutdown", LaunchError),
    ],
)
def test_node_that_dies_while_starting_releases_whole_fleet(
    script: Script, ctx: HandlerContext, reason: str, expected: type
) -> None:
    dead, alive = instance("i-a", "terminated", reason), instance("i-b", "running")
    script.launched(BOTH)
    script.seen(dead, alive)
    script.released(dead, alive)
    with pytest.raises(expected) as caught:
        FLEET.create(ctx, inputs())
    assert type(caught.value) is expected
    assert caught.value.launched == tuple(BOTH)


def test_node_that_ends_for_a_kms_key_names_the_key_and_no_other_cause(script: Script, ctx: HandlerContext) -> None:
    dead = instance("i-a", "terminated", "Client.InternalError")
    dead["StateReason"]["Message"] = "Client.InternalError: Client error on launch"
    script.launched(BOTH)
    script.seen(dead)
    script.released(dead)
    with pytest.raises(LaunchError, match=r"starting: Client error on launch \(Client\.InternalError\)$") as caught:
        FLEET.create(ctx, inputs())
    assert rule_for_error(caught.value).skips == "stop"
    assert "kms_key_id" in caught.value.hint
    assert "key's policy" in caught.value.hint
    assert "throttling" not in caught.value.message + caught.value.hint


def test_capacity_error_is_raised_without_retry(script: Script, ctx: HandlerContext, clock) -> None:
    script.refused("InsufficientInstanceCapacity", status=500)
    with pytest.raises(CapacityError):
        FLEET.create(ctx, inputs())
    assert clock.monotonic() == 0


def test_throttled_call_is_retried_with_same_token(script: Script, ctx: HandlerContext) -> None:
    script.refused("RequestLimitExceeded", status=503)
    script.refused("InternalError", status=500)
    script.launched(BOTH)
    script.seen(instance("i-a", "running"), instance("i-b", "running"))
    assert FLEET.create(ctx, inputs()).id == "fleet-1"


def test_endless_throttling_raises_throttled_error(scripted, ctx: HandlerContext, clock) -> None:
    for _ in range(60):
        Script(scripted).refused("RequestLimitExceeded", status=503)
    with pytest.raises(ThrottledError):
        FLEET.create(ctx, inputs())
    assert 60 < clock.monotonic() <= 120


def test_unknown_new_instance_profile_is_retried(script: Script, ctx: HandlerContext) -> None:
    said = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
    script.launched([], ("InvalidParameterValue", said))
    script.released()
    script.launched(BOTH, token="token-1-1")
    script.seen(instance("i-a", "running"), instance("i-b", "running"))
    assert FLEET.create(ctx, inputs()).id == "fleet-1"


ABSENT = [
    ("InvalidGroup.NotFound", "The security group 'sg-0123456789abcdef0' does not exist", "sg-0123456789abcdef0"),
    ("InvalidPlacementGroup.Unknown", "The Placement Group 'cloudgpu-lab' is unknown.", "cloudgpu-lab"),
    ("InvalidLaunchTemplateName.NotFoundException", "template name cloudgpu-lab does not exist", "cloudgpu-lab"),
]


@pytest.mark.parametrize("absent", ABSENT)
def test_new_resource_that_the_fleet_does_not_find_is_retried_with_another_token(
    script: Script, scripted, ctx: HandlerContext, clock, absent: tuple[str, str, str]
) -> None:
    code, text, name = absent
    scripted.created.add(name)
    script.launched([], (code, text))
    script.released()
    script.launched(["i-c"], (code, text), token="token-1-1")
    script.released(instance("i-c", "running"))  # the nodes of the first answer end before the next launch
    script.launched(BOTH, token="token-1-2")
    script.seen(instance("i-a", "running"), instance("i-b", "running"))
    assert FLEET.create(ctx, inputs()).id == "fleet-1"
    assert 0 < clock.monotonic() < 60


@pytest.mark.parametrize(("code", "text", "name"), ABSENT)
def test_missing_resource_that_was_not_just_created_is_final(
    script: Script, ctx: HandlerContext, clock, code: str, text: str, name: str
) -> None:
    script.launched([], (code, text))
    script.released()
    with pytest.raises(CloudError, match=name):
        FLEET.create(ctx, inputs())
    assert clock.monotonic() == 0


def test_new_resource_that_stays_invisible_is_an_error_after_a_minute(
    script: Script, scripted, ctx: HandlerContext, clock
) -> None:
    code, text, name = ABSENT[0]
    scripted.created.add(name)
    for attempt in range(30):
        script.launched([], (code, text), token=f"token-1-{attempt}" if attempt else "token-1")
        script.released()
    with pytest.raises(CloudError, match=name):
        FLEET.create(ctx, inputs())
    assert 60 <= clock.monotonic() < 70
    for stub in scripted.stubs.values():
        stub.deactivate()
    scripted.stubs.clear()


def test_fleet_stuck_in_pending_times_out(scripted, ctx: HandlerContext, clock) -> None:
    script = Script(scripted)
    script.launched(BOTH)
    for _ in range(90):
        script.seen(instance("i-a", "pending"), instance("i-b", "pending"))
    with pytest.raises(CloudError, match="to start running") as caught:
        FLEET.create(ctx, inputs())
    assert caught.value.code == "TimedOut"
    assert clock.monotonic() <= 600


def test_find_uses_intent_tag(script: Script, ctx: HandlerContext) -> None:
    script.seen(
        instance("i-0", "terminated", fleet="fleet-0"),
        instance("i-a", "running"),
        instance("i-b", "pending"),
        filters=[{"Name": "tag:cloudgpu:intent", "Values": ["token-1"]}],
    )
    found = FLEET.find(ctx, inputs())
    assert found is not None
    assert found.id == "fleet-1"
    assert found.outputs["fleetInstanceSets"][0]["instanceIds"] == BOTH


def test_find_returns_none_without_instances(script: Script, ctx: HandlerContext) -> None:
    script.seen()
    assert FLEET.find(ctx, inputs()) is None


def test_fleet_with_only_terminated_instances_reads_as_absent(script: Script, ctx: HandlerContext) -> None:
    script.seen(instance("i-a", "terminated"), instance("i-b", "shutting-down"))
    assert FLEET.read(ctx, "fleet-1") is None


def test_delete_terminates_recorded_and_tagged_instances(script: Script, ctx: HandlerContext) -> None:
    script.released(instance("i-a", "running"), instance("i-b", "shutting-down"))
    FLEET.delete(ctx, "fleet-1", {"fleetInstanceSets": [{"instanceIds": ["i-a"]}]})


def test_delete_of_absent_fleet_succeeds(script: Script, ctx: HandlerContext) -> None:
    failed = {"FleetId": "fleet-1", "Error": {"Code": "fleetIdDoesNotExist", "Message": "no"}}
    script.ec2.add_response("delete_fleets", {"UnsuccessfulFleetDeletions": [failed]})
    script.seen()
    script.seen()
    script.seen()
    FLEET.delete(ctx, "fleet-1", {"fleetInstanceSets": [{"instanceIds": ["i-a"]}]})


def test_failed_fleet_deletion_raises_error(script: Script, ctx: HandlerContext) -> None:
    failed = {"FleetId": "fleet-1", "Error": {"Code": "unexpectedError", "Message": "no"}}
    script.ec2.add_response("delete_fleets", {"UnsuccessfulFleetDeletions": [failed]})
    with pytest.raises(CloudError):
        FLEET.delete(ctx, "fleet-1", {})


def test_vanished_instance_does_not_block_termination_of_others(script: Script, ctx: HandlerContext) -> None:
    both = instance("i-a", "running"), instance("i-b", "running")
    script.ec2.add_response("delete_fleets", {})
    script.seen(*both)
    script.seen(*both)
    script.ec2.add_client_error("terminate_instances", "InvalidInstanceID.NotFound", http_status_code=400)
    script.ec2.add_response("terminate_instances", {}, {"InstanceIds": ["i-a"]})
    script.ec2.add_client_error("terminate_instances", "InvalidInstanceID.NotFound", http_status_code=400)
    script.seen(instance("i-a", "terminated"))
    FLEET.delete(ctx, "fleet-1", {})


@pytest.mark.parametrize("change", [{"type": "maintain"}, {"terminateInstances": False}, {"type": None}])
def test_unsupported_fleet_types_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="instant"):
        FLEET.check({**INPUTS, **change})


def test_only_tag_changes_update_fleet_in_place() -> None:
    old = inputs()
    assert FLEET.diff(old, {**old, "tags": {}}).replace == ()
    assert FLEET.diff(old, {**old, "targetCapacitySpecification": {}}).replace == ("targetCapacitySpecification",)


def test_tag_update_of_1200_nodes_takes_three_calls(script: Script, ctx: HandlerContext) -> None:
    ids = [f"i-{number:04}" for number in range(1200)]
    script.seen(*(instance(one, "running") for one in ids), instance("i-ended", "terminated"))
    tags, everything = [{"Key": "Name", "Value": "later"}], ["fleet-1", *ids]
    for start in (0, 500, 1000):
        chunk = {"Resources": everything[start : start + 500], "Tags": tags}
        script.ec2.add_response("create_tags", {}, chunk)
    changed = FLEET.update(ctx, "fleet-1", inputs(), FLEET.check({**INPUTS, "tags": {"Name": "later"}}))
    (members,) = changed.outputs["fleetInstanceSets"]
    assert len(members["instanceIds"]) == 1200
