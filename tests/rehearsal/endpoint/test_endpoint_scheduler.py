"""EventBridge Scheduler: rejects what AWS rejects, and makes the scheduled call on time."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

HOUR_S = 3600.0
TARGET = "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances"
FLEETS = "arn:aws:scheduler:::aws-sdk:ec2:deleteFleets"
ARN = "arn:aws:scheduler:us-east-1:123456789012:schedule-group/expiry"


def trust(group_arn=ARN, service="scheduler.amazonaws.com"):
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [{**statement, "Condition": {"StringEquals": {"aws:SourceArn": group_arn}}}],
        }
    )


def policy(cluster="c"):
    condition = {"StringEquals": {"aws:ResourceTag/cloudgpu:cluster": cluster}}
    statements = [
        {"Effect": "Allow", "Action": f"ec2:{call}", "Resource": f"arn:aws:ec2:us-east-1:*:{kind}/*"}
        for call, kind in (("TerminateInstances", "instance"), ("DeleteFleets", "fleet"))
    ]
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{**statement, "Condition": condition} for statement in statements]}
    )


@pytest.fixture
def scheduler(rig):
    return rig.aws("scheduler")


@pytest.fixture
def schedule_role(rig, scheduler):
    """Create a tagged schedule group and a role that may terminate the nodes of cluster `c`; return the role's ARN."""
    scheduler.create_schedule_group(Name="expiry", Tags=[{"Key": "cloudgpu:cluster", "Value": "c"}])
    role = rig.aws("iam").create_role(RoleName="expiry", AssumeRolePolicyDocument=trust())["Role"]
    rig.aws("iam").put_role_policy(RoleName="expiry", PolicyName="end", PolicyDocument=policy())
    return role["Arn"]


@pytest.fixture
def gang(rig, fleet):
    """Launch two nodes of cluster `c` and return their IDs."""
    tags = [{"ResourceType": "fleet", "Tags": [{"Key": "cloudgpu:cluster", "Value": "c"}]}]
    answer = rig.ec2.create_fleet(**fleet(2, [rig.subnet()], TagSpecifications=tags))
    ids = [one for row in answer["Instances"] for one in row["InstanceIds"]]
    rig.until(lambda: rig.states(*ids) == {"running"})
    return ids


def request(role, ids=("i-0123456789abcdef0",), in_s=HOUR_S, **more):
    at = datetime.now(UTC) + timedelta(seconds=in_s)
    return {
        "Name": "end",
        "GroupName": "expiry",
        "ScheduleExpression": f"at({at:%Y-%m-%dT%H:%M:%S})",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {"Arn": TARGET, "RoleArn": role, "Input": json.dumps({"InstanceIds": list(ids)})},
        **more,
    }


def code(call, **parameters):
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return caught.value.response["Error"]["Code"]


def test_schedule_terminates_nodes_at_its_time_and_deletes_itself(rig, scheduler, schedule_role, gang):
    scheduler.create_schedule(**request(schedule_role, gang))
    client.advance(rig.cloud, HOUR_S - 60)
    assert rig.states(*gang) == {"running"}
    client.advance(rig.cloud, 60)
    rig.until(lambda: rig.states(*gang) == {"terminated"})
    assert code(scheduler.get_schedule, GroupName="expiry", Name="end") == "ResourceNotFoundException"
    assert client.list_resources(rig.cloud)["schedules"] == []


def test_updated_schedule_fires_at_its_new_time(rig, scheduler, schedule_role, gang):
    scheduler.create_schedule(**request(schedule_role, gang))
    scheduler.update_schedule(**request(schedule_role, gang, in_s=2 * HOUR_S))
    client.advance(rig.cloud, HOUR_S + 60)
    assert rig.states(*gang) == {"running"}
    assert scheduler.get_schedule(GroupName="expiry", Name="end")["ActionAfterCompletion"] == "DELETE"
    client.advance(rig.cloud, HOUR_S)
    rig.until(lambda: rig.states(*gang) == {"terminated"})


@pytest.mark.parametrize("harm", ["another cluster's role", "no role", "an unknown node"])
def test_schedule_whose_call_is_rejected_terminates_no_node(rig, scheduler, schedule_role, gang, harm):
    ids = [*gang, "i-0123456789abcdef0"] if harm == "an unknown node" else gang
    scheduler.create_schedule(**request(schedule_role, ids))
    iam = rig.aws("iam")
    if harm == "another cluster's role":
        iam.put_role_policy(RoleName="expiry", PolicyName="end", PolicyDocument=policy("other"))
    if harm == "no role":
        iam.delete_role_policy(RoleName="expiry", PolicyName="end")
        iam.delete_role(RoleName="expiry")
    client.advance(rig.cloud, HOUR_S + 60)
    assert rig.states(*gang) == {"running"}


def by_fleet(role, fleet_id, **more):
    parameters = json.dumps({"FleetIds": [fleet_id], "TerminateInstances": True})
    return request(role, **{"Target": {"Arn": FLEETS, "RoleArn": role, "Input": parameters}, "Name": "fleet", **more})


def fleet_of(rig, instance_id):
    (row,) = rig.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"]
    return next(tag["Value"] for tag in row["Tags"] if tag["Key"] == "aws:ec2:fleet-id")


def test_fleet_schedule_terminates_nodes_when_instance_schedule_fails(rig, scheduler, schedule_role, gang):
    """TerminateInstances fails for all IDs if one is unknown; DeleteFleets does not name the instances."""
    fleet_id = fleet_of(rig, gang[0])
    scheduler.create_schedule(**request(schedule_role, [*gang, "i-0123456789abcdef0"]))
    scheduler.create_schedule(**by_fleet(schedule_role, fleet_id, in_s=2 * HOUR_S))
    client.advance(rig.cloud, HOUR_S + 60)
    assert rig.states(*gang) == {"running"}
    client.advance(rig.cloud, HOUR_S)
    rig.until(lambda: rig.states(*gang) == {"terminated"})
    assert client.list_resources(rig.cloud)["fleets"] == []


def test_fleet_schedule_without_permission_terminates_no_node(rig, scheduler, schedule_role, gang):
    scheduler.create_schedule(**by_fleet(schedule_role, fleet_of(rig, gang[0])))
    rig.aws("iam").put_role_policy(RoleName="expiry", PolicyName="end", PolicyDocument=policy("other"))
    client.advance(rig.cloud, HOUR_S + 60)
    assert rig.states(*gang) == {"running"}


def test_schedule_in_a_missing_group_is_rejected(scheduler, schedule_role):
    assert code(scheduler.create_schedule, **request(schedule_role, GroupName="none")) == "ResourceNotFoundException"


@pytest.mark.parametrize("document", [trust(service="ec2.amazonaws.com"), trust(f"{ARN}-other"), None])
def test_schedule_with_an_unassumable_role_is_rejected(rig, scheduler, schedule_role, document):
    iam = rig.aws("iam")
    if document is None:
        arn = schedule_role + "-that-is-not-there"
    else:
        arn = iam.create_role(RoleName="other", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    assert code(scheduler.create_schedule, **request(arn)) == "ValidationException"


@pytest.mark.parametrize("wrong", [{"ScheduleExpression": "at(2026-11-21)"}, {"FlexibleTimeWindow": {"Mode": "ON"}}])
def test_invalid_schedule_is_rejected(scheduler, schedule_role, wrong):
    assert code(scheduler.create_schedule, **request(schedule_role, **wrong)) == "ValidationException"


def test_duplicate_names_conflict_and_repeated_tokens_are_idempotent(scheduler, schedule_role):
    first = scheduler.create_schedule_group(Name="two", ClientToken="t" * 8)["ScheduleGroupArn"]
    assert scheduler.create_schedule_group(Name="two", ClientToken="t" * 8)["ScheduleGroupArn"] == first
    assert code(scheduler.create_schedule_group, Name="two") == "ConflictException"
    made = scheduler.create_schedule(ClientToken="s" * 8, **request(schedule_role))["ScheduleArn"]
    assert scheduler.create_schedule(ClientToken="s" * 8, **request(schedule_role))["ScheduleArn"] == made
    assert code(scheduler.create_schedule, **request(schedule_role)) == "ConflictException"


def test_deleting_a_schedule_group_deletes_its_schedules(rig, scheduler, schedule_role):
    scheduler.create_schedule(**request(schedule_role))
    tags = scheduler.list_tags_for_resource(ResourceArn=ARN)["Tags"]
    assert tags == [{"Key": "cloudgpu:cluster", "Value": "c"}]
    (row,) = client.list_resources(rig.cloud)["schedules"]
    assert (row["id"], row["tags"]) == ("expiry/end", {"cloudgpu:cluster": "c"})
    scheduler.delete_schedule_group(Name="expiry")
    assert client.list_resources(rig.cloud)["schedule_groups"] == client.list_resources(rig.cloud)["schedules"] == []
    assert code(scheduler.delete_schedule_group, Name="expiry") == "ResourceNotFoundException"
    assert code(scheduler.list_tags_for_resource, ResourceArn=ARN) == "ResourceNotFoundException"
    assert code(scheduler.delete_schedule_group, Name="default") == "ValidationException"
