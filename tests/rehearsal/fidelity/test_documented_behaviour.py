"""What AWS's documentation and service models say and the rehearsal cloud once did otherwise."""

import base64
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client
from tests.rehearsal.endpoint.conftest import Rig
from tests.rehearsal.fidelity.conftest import situation_in
from tests.rehearsal.fidelity.situations import Situation

pytestmark = pytest.mark.rehearsal


# EC2 API reference, FleetData: ClientToken


def test_described_fleet_has_its_client_token(situation: Situation) -> None:
    ec2, name = situation.client("ec2"), situation.name("fleet")
    data = {
        "ImageId": situation.image_id,
        "InstanceType": "g5.xlarge",
        "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
    }
    made = ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)["LaunchTemplate"]
    specification = {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "$Latest"}
    fleet = ec2.create_fleet(
        Type="instant",
        ClientToken="token",
        LaunchTemplateConfigs=[
            {"LaunchTemplateSpecification": specification, "Overrides": [{"SubnetId": situation.subnet_id}]}
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
    )
    (described,) = ec2.describe_fleets(FleetIds=[fleet["FleetId"]])["Fleets"]
    assert described["ClientToken"] == "token"


# Terraform's AWS provider sends and expects `lowestPrice`, and the service model says `lowest-price`: the AWS CLI's
# example of describe-fleets has the first. Other strategies are as in the model. A difference would replace the fleet.


@pytest.mark.parametrize(
    ("requested", "described"),
    [
        ({}, ("lowestPrice", "lowestPrice")),
        ({"SpotOptions": {"AllocationStrategy": "lowest-price"}}, ("lowestPrice", "lowestPrice")),
        ({"SpotOptions": {"AllocationStrategy": "lowestPrice"}}, ("lowestPrice", "lowestPrice")),
        ({"SpotOptions": {"AllocationStrategy": "capacity-optimized"}}, ("capacity-optimized", "lowestPrice")),
        ({"OnDemandOptions": {"AllocationStrategy": "prioritized"}}, ("lowestPrice", "prioritized")),
        ({"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}, ("lowestPrice", "lowestPrice")),
    ],
)
def test_lowest_price_of_a_described_fleet_is_spelled_as_terraform_expects(
    situation: Situation, requested: dict[str, Any], described: tuple[str, str]
) -> None:
    ec2, name = situation.client("ec2"), situation.name("fleet")
    data = {"ImageId": situation.image_id, "InstanceType": "g5.xlarge"}
    made = ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)["LaunchTemplate"]
    specification = {"LaunchTemplateId": made["LaunchTemplateId"], "Version": "$Latest"}
    fleet = ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {"LaunchTemplateSpecification": specification, "Overrides": [{"SubnetId": situation.subnet_id}]}
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
        **requested,
    )
    (row,) = ec2.describe_fleets(FleetIds=[fleet["FleetId"]])["Fleets"]
    assert (row["SpotOptions"]["AllocationStrategy"], row["OnDemandOptions"]["AllocationStrategy"]) == described
    assert row["SpotOptions"].get("InstancePoolsToUseCount") == (1 if described[0] == "lowestPrice" else None)


# awsdocs/aws-cloudformation-user-guide pull request 453 quotes EC2's answer


@pytest.mark.parametrize("data", [None, {}])
def test_launch_template_without_data_is_rejected(situation: Situation, data: dict[str, Any] | None) -> None:
    ec2, name = situation.client("ec2"), situation.name("empty")
    more = {} if data is None else {"LaunchTemplateData": data}
    with pytest.raises(ClientError) as err:
        ec2.create_launch_template(LaunchTemplateName=name, **more)
    assert (err.value.response["Error"]["Code"], err.value.response["Error"]["Message"]) == (
        "MissingParameter",
        "No launch template data was provided. Launch template data is required to create a launch template.",
    )


# Terraform's AWS provider (data source aws_vpc) and dstack send `isDefault`, which botocore does not document


@pytest.mark.parametrize("name", ["is-default", "isDefault"])
def test_default_vpc_is_found_by_both_names_of_the_filter(situation: Situation, name: str) -> None:
    (vpc,) = situation.client("ec2").describe_vpcs(Filters=[{"Name": name, "Values": ["true"]}])["Vpcs"]
    assert vpc["IsDefault"]


@pytest.mark.parametrize(
    ("region", "long_name"), [("us-east-2", "US East (Ohio) 1"), ("eu-west-1", "Europe (Ireland) 1")]
)
def test_zone_has_the_long_name_of_its_group(situation: Situation, region: str, long_name: str) -> None:
    zones = situation.client("ec2", region).describe_availability_zones()["AvailabilityZones"]
    assert {zone["GroupLongName"] for zone in zones} == {long_name}


# Service models: the errors of EventBridge Scheduler have the member `Message`, those of SSM one or the other


@pytest.mark.parametrize(
    ("call", "code", "member"),
    [
        (lambda s: s.client("scheduler").get_schedule(Name="none"), "ResourceNotFoundException", "Message"),
        (lambda s: s.client("scheduler").get_schedule_group(Name="none"), "ResourceNotFoundException", "Message"),
        (lambda s: s.client("scheduler").delete_schedule_group(Name="default"), "ValidationException", "Message"),
        (
            lambda s: s.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-0"),
            "NoSuchResourceException",
            "Message",
        ),
        (lambda s: s.client("ssm").get_parameter(Name="/none"), "ParameterNotFound", "message"),
        (
            lambda s: s.client("efs").describe_mount_targets(FileSystemId="fs-0123456789abcdef0"),
            "FileSystemNotFound",
            "Message",
        ),
    ],
)
def test_message_of_a_json_error_is_named_as_in_the_service_model(
    situation: Situation, call: Any, code: str, member: str
) -> None:
    with pytest.raises(ClientError) as err:
        call(situation)
    assert err.value.response["Error"]["Code"] == code
    assert err.value.response["Error"]["Message"]
    assert err.value.response[member] == err.value.response["Error"]["Message"]


# The recording of CreateRole, and the AWS CLI's examples of create-role and assume-role

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}],
    }
)


def test_created_role_has_the_members_of_a_new_role(situation: Situation) -> None:
    iam, name = situation.client("iam"), situation.name("role")
    role = iam.create_role(
        RoleName=name, AssumeRolePolicyDocument=TRUST, Description="text", Tags=[{"Key": "a", "Value": "b"}]
    )["Role"]
    assert set(role) == {"Path", "RoleName", "RoleId", "Arn", "CreateDate", "AssumeRolePolicyDocument", "Tags"}
    assert role["AssumeRolePolicyDocument"] == json.loads(TRUST)
    read = iam.get_role(RoleName=name)["Role"]
    assert (read["Description"], read["MaxSessionDuration"]) == ("text", 3600)


@pytest.mark.parametrize(
    ("more", "packed"),
    [({}, False), ({"Policy": TRUST}, True), ({"Tags": [{"Key": "a", "Value": "b"}]}, True)],
)
def test_packed_policy_size_is_reported_for_session_policies_only(
    situation: Situation, more: dict[str, Any], packed: bool
) -> None:
    name = situation.name("role")
    arn = situation.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
    answer = situation.client("sts").assume_role(RoleArn=arn, RoleSessionName="x", **more)
    assert ("PackedPolicySize" in answer) == packed
    assert answer["Credentials"]["SessionToken"]


# AWS PrivateLink guide, "Delete an interface endpoint": its network interfaces are deleted with it


def test_deleted_interface_endpoint_leaves_no_network_interface(situation: Situation) -> None:
    ec2 = situation.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    endpoint = ec2.create_vpc_endpoint(
        VpcId=vpc, VpcEndpointType="Interface", ServiceName="com.amazonaws.us-east-1.ssm", SubnetIds=[subnet]
    )["VpcEndpoint"]
    interfaces = [{"Name": "subnet-id", "Values": [subnet]}]
    assert len(ec2.describe_network_interfaces(Filters=interfaces)["NetworkInterfaces"]) == 1
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    assert ec2.describe_network_interfaces(Filters=interfaces)["NetworkInterfaces"] == []
    ec2.delete_subnet(SubnetId=subnet)


# EC2 API reference, CreateImage: the image is `pending` while it is created; the waiter image_available polls


def test_new_image_is_described_as_pending_first(situation: Situation) -> None:
    ec2, name = situation.client("ec2"), situation.name("image")
    made = ec2.run_instances(
        MinCount=1, MaxCount=1, ImageId=situation.image_id, InstanceType="g5.xlarge", SubnetId=situation.subnet_id
    )
    image = ec2.create_image(InstanceId=made["Instances"][0]["InstanceId"], Name=name, NoReboot=True)["ImageId"]

    def state() -> str:
        return str(ec2.describe_images(ImageIds=[image])["Images"][0]["State"])

    assert [state(), state()] == ["pending", "available"]


# Service Quotas: the applied value of a quota is what EC2 enforces, the default value is AWS's


def test_elastic_ip_quota_is_the_limit_that_ec2_enforces(rig: Rig) -> None:
    quotas = situation_in(rig).client("service-quotas")

    def value(call: Any) -> float:
        return float(call(ServiceCode="ec2", QuotaCode="L-0263D0A3")["Quota"]["Value"])

    assert (value(quotas.get_service_quota), value(quotas.get_aws_default_service_quota)) == (5, 5)
    client.put_quotas(rig.cloud, {"us-east-1/elastic-ip/on-demand": 1})
    assert (value(quotas.get_service_quota), value(quotas.get_aws_default_service_quota)) == (1, 5)
