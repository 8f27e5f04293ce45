"""What AWS's documentation and service models say and the rehearsal cloud once did otherwise."""

import base64
from typing import Any

import pytest

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
