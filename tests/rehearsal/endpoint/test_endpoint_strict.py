"""The rehearsal endpoint rejects what AWS rejects, with the same error codes, and keeps the same guarantees."""

import base64
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from cloudgpu.aws.ec2.ssh_access import ConsoleOutput, read_console
from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]


def code_of(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


def test_fleet_launches_nodes_with_placement_tags_and_efa(rig, fleet):
    made = rig.ec2.create_fleet(**fleet(2, [rig.subnet()], ClientToken="t"))
    assert made["Errors"] == []
    ids = made["Instances"][0]["InstanceIds"]
    assert len(ids) == 2
    rig.until(lambda: rig.states(*ids) == {"running"})
    for row in rig.instances(*ids):
        assert row["Placement"] | {"Tenancy": ""} == {
            "AvailabilityZone": "us-east-1c",
            "GroupName": "gang",
            "Tenancy": "",
        }
        tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
        assert tags["cloudgpu:cluster"] == "c"
        assert tags["aws:ec2:fleet-id"] == made["FleetId"]
        assert "own" not in tags
        assert row["PrivateIpAddress"] == row["PublicIpAddress"]
        assert row["PrivateIpAddress"].startswith("127.")
        assert row["NetworkInterfaces"][0]["InterfaceType"] == "efa"
        assert row["MetadataOptions"]["HttpTokens"] == "required"
        assert row["IamInstanceProfile"]["Arn"].endswith("/node")
    spec = rig.host.started[0]
    assert (spec.gpu, spec.gpus, spec.gpu_memory_mib, spec.efa_interfaces) == ("V100", 8, 32768, 1)
    assert (spec.user, spec.role, spec.user_data) == ("ubuntu", "node", b"#!/bin/sh\n")
    assert spec.authorized_keys[0].startswith("ssh-ed25519 ")
    assert rig.host.credentials is not None
    parts = rig.ec2.describe_volumes()["Volumes"] + rig.ec2.describe_network_interfaces()["NetworkInterfaces"]
    assert len(parts) == 4
    for part in parts:
        assert {"Key": "cloudgpu:cluster", "Value": "c"} in (part.get("Tags") or part["TagSet"])
    assert rig.ec2.describe_volumes()["Volumes"][0]["Encrypted"]


def test_instances_are_found_by_filters(rig, fleet):
    made = rig.ec2.create_fleet(**fleet(2, [rig.subnet()]))
    run = rig.ec2.run_instances(MinCount=1, MaxCount=1, ImageId=rig.ami(), InstanceType="g5.xlarge", ClientToken="mine")

    def found(name: str, value: str) -> int:
        rows = rig.ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
        return sum(len(row["Instances"]) for row in rows)

    assert found("client-token", "mine") == 1
    assert found("placement-group-name", "gang") == 2
    assert found("tag:aws:ec2:fleet-id", made["FleetId"]) == 2
    assert run["Instances"][0]["ClientToken"] == "mine"
    assert (
        code_of(rig.ec2.describe_instances, Filters=[{"Name": "nonsense", "Values": ["x"]}]) == "InvalidParameterValue"
    )
    pages = rig.ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 1})
    assert sum(1 for _ in pages) == 2


def test_fleet_token_launches_once_and_rejects_other_parameters(rig, fleet):
    request = fleet(2, [rig.subnet()], ClientToken="t")
    first, again = rig.ec2.create_fleet(**request), rig.ec2.create_fleet(**request)
    assert first["FleetId"] == again["FleetId"]
    assert first["Instances"] == again["Instances"]
    assert len(client.list_resources(rig.cloud)["instances"]) == 2
    more = fleet(3, [rig.subnet()], ClientToken="t")
    assert code_of(rig.ec2.create_fleet, **more) == "IdempotentParameterMismatch"


def test_run_instances_token_applies_per_zone(rig):
    request = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge", "ClientToken": "t"}
    ids = {
        rig.ec2.run_instances(Placement={"AvailabilityZone": zone}, **request)["Instances"][0]["InstanceId"]
        for zone in ("us-east-1c", "us-east-1c", "us-east-1d")
    }
    assert len(ids) == 2


def test_volumes_and_launch_templates_are_created_once_per_token(rig):
    volume = {"AvailabilityZone": "us-east-1a", "Size": 1, "ClientToken": "v"}
    assert rig.ec2.create_volume(**volume)["VolumeId"] == rig.ec2.create_volume(**volume)["VolumeId"]
    lt = {"LaunchTemplateName": "once", "LaunchTemplateData": {"InstanceType": "g5.xlarge"}, "ClientToken": "l"}
    made = [rig.ec2.create_launch_template(**lt)["LaunchTemplate"]["LaunchTemplateId"] for _ in range(2)]
    assert made[0] == made[1]
    assert len(rig.ec2.describe_launch_templates()["LaunchTemplates"]) == 1


def test_fleet_without_capacity_launches_nothing_and_reports_the_error(rig, fleet):
    client.put_capacity(rig.cloud, {"us-east-1c/p3dn.24xlarge/*": 1})
    made = rig.ec2.create_fleet(**fleet(2, [rig.subnet()]))
    assert made["Instances"] == []
    assert made["Errors"][0]["ErrorCode"] == "InsufficientInstanceCapacity"
    assert made["Errors"][0]["LaunchTemplateAndOverrides"]["Overrides"]["SubnetId"] == rig.subnet()
    assert client.list_resources(rig.cloud)["instances"] == []
    other = rig.ec2.create_fleet(**fleet(2, [rig.subnet(), rig.subnet("us-east-1d")]))
    assert len(other["Instances"]) == 1
    assert rig.instances(other["Instances"][0]["InstanceIds"][0])[0]["Placement"]["AvailabilityZone"] == "us-east-1d"


def test_vcpu_quota_counts_running_instances(rig, fleet):
    client.put_quotas(rig.cloud, {"us-east-1/p/*": 192})
    assert rig.ec2.create_fleet(**fleet(2, [rig.subnet()]))["Errors"] == []
    over = rig.ec2.create_fleet(**fleet(1, [rig.subnet()]))
    assert over["Errors"][0]["ErrorCode"] == "VcpuLimitExceeded"
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge"}
    assert code_of(rig.ec2.run_instances, **run) == "VcpuLimitExceeded"
    client.put_quotas(rig.cloud, {"*/p/spot": 0})
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    assert code_of(rig.ec2.run_instances, **run, **spot) == "MaxSpotInstanceCountExceeded"


def test_run_instances_launches_at_most_the_available_capacity(rig):
    client.put_capacity(rig.cloud, {"*/g5.xlarge/*": 2})
    run = {"ImageId": rig.ami(), "InstanceType": "g5.xlarge", "Placement": {"AvailabilityZone": "us-east-1a"}}
    assert code_of(rig.ec2.run_instances, MinCount=3, MaxCount=3, **run) == "InsufficientInstanceCapacity"
    assert len(rig.ec2.run_instances(MinCount=1, MaxCount=3, **run)["Instances"]) == 2


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"InstanceType": "zz9.bogus"}, "InvalidParameterValue"),
        ({"InstanceType": "p3.16xlarge"}, "InvalidInstanceType"),
        ({"InstanceType": "p2.xlarge"}, "InvalidInstanceType"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "nonsense"}, "InvalidAMIID.Malformed"),
        ({"KeyName": "absent"}, "InvalidKeyPair.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"Placement": {"AvailabilityZone": "us-east-1a"}}, "Unsupported"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"Placement": {"GroupName": "absent"}}, "InvalidPlacementGroup.Unknown"),
        ({"IamInstanceProfile": {"Name": "absent"}}, "InvalidParameterValue"),
        ({"MinCount": 3, "MaxCount": 2}, "InvalidParameterValue"),
        ({"LaunchTemplate": {"LaunchTemplateId": "lt-0123456789abcdef0"}}, "InvalidLaunchTemplateId.NotFound"),
        ({"DryRun": True}, "DryRunOperation"),
        ({"DryRun": True, "ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        (
            {"InstanceType": "g4dn.xlarge", "NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]},
            "InvalidParameterCombination",
        ),
        (
            {"NetworkInterfaces": [{"DeviceIndex": at, "AssociatePublicIpAddress": True} for at in (0, 1)]},
            "InvalidParameterCombination",
        ),
        (
            {"NetworkInterfaces": [{"DeviceIndex": at, "InterfaceType": "efa"} for at in (0, 1)]},
            "AttachmentLimitExceeded",
        ),
        ({"NetworkInterfaces": [{"DeviceIndex": 0}, {"DeviceIndex": 0}]}, "InvalidParameterValue"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-0123456789abcdef0"]}]}, "InvalidGroup.NotFound"),
    ],
)
def test_invalid_launch_is_rejected_with_the_aws_error_code(rig, change, code):
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge", **change}
    assert code_of(rig.ec2.run_instances, **run) == code
    assert client.list_resources(rig.cloud)["instances"] == []
    assert client.list_resources(rig.cloud)["groups"] == []


def test_instance_has_an_interface_on_every_network_card(rig):
    rows = [{"NetworkCardIndex": card, "DeviceIndex": min(card, 1), "InterfaceType": "efa"} for card in range(4)]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p4d.24xlarge"}
    made = rig.ec2.run_instances(NetworkInterfaces=rows, **run)["Instances"][0]
    shown = rig.instances(made["InstanceId"])[0]["NetworkInterfaces"]
    places = sorted((row["Attachment"]["NetworkCardIndex"], row["Attachment"]["DeviceIndex"]) for row in shown)
    assert places == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert {row["InterfaceType"] for row in shown} == {"efa"}


def test_fleet_skips_unsupported_pools_and_reports_their_errors(rig, fleet):
    request = fleet(1, [rig.subnet("us-east-1a"), rig.subnet()])
    made = rig.ec2.create_fleet(**request)
    assert len(made["Instances"]) == 1
    only = rig.ec2.create_fleet(**fleet(1, [rig.subnet("us-east-1a")]))
    assert only["Instances"] == []
    assert only["Errors"][0]["ErrorCode"] == "InvalidFleetConfiguration"
    retired = fleet(1, [rig.subnet()])
    retired["LaunchTemplateConfigs"][0]["Overrides"][0]["InstanceType"] = "p3.16xlarge"
    assert rig.ec2.create_fleet(**retired)["Errors"][0]["ErrorCode"] == "InvalidInstanceType"


def test_fleet_reports_a_missing_resource_of_its_template_as_an_error_with_http_200(rig, fleet):
    request = fleet(2, [rig.subnet()])
    absent = [{"InstanceType": "p3dn.24xlarge", "SubnetId": "subnet-0123456789abcdef0"}]
    request["LaunchTemplateConfigs"][0]["Overrides"] = absent
    made = rig.ec2.create_fleet(**request)
    assert made["Instances"] == []
    assert [row["ErrorCode"] for row in made["Errors"]] == ["InvalidSubnetID.NotFound"]


def test_root_disk_smaller_than_the_snapshot_of_the_image_is_rejected(rig):
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    image_id = rig.aws("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    image = rig.ec2.describe_images(ImageIds=[image_id])["Images"][0]
    (disk,) = image["BlockDeviceMappings"]
    gib, snapshot = disk["Ebs"]["VolumeSize"], disk["Ebs"]["SnapshotId"]
    assert disk["DeviceName"] == image["RootDeviceName"]

    def launch(size: int):
        root = [{"DeviceName": image["RootDeviceName"], "Ebs": {"VolumeSize": size}}]
        more = {"ImageId": image_id, "BlockDeviceMappings": root, "SubnetId": rig.subnet()}
        return rig.ec2.run_instances(MinCount=1, MaxCount=1, InstanceType="g4dn.xlarge", **more)

    with pytest.raises(ClientError) as err:
        launch(gib - 1)
    assert err.value.response["Error"]["Code"] == "InvalidBlockDeviceMapping"
    words = f"Volume of size {gib - 1}GB is smaller than snapshot '{snapshot}', expect size >= {gib}GB"
    assert err.value.response["Error"]["Message"] == words
    assert launch(gib)["Instances"]


def test_invalid_fleet_options_are_rejected(rig, fleet):
    loose = fleet(2, [rig.subnet()], OnDemandOptions={"MinTargetCapacity": 2})
    assert code_of(rig.ec2.create_fleet, **loose) == "InvalidParameterCombination"
    much = fleet(2, [rig.subnet()], OnDemandOptions={"MinTargetCapacity": 3, "SingleInstanceType": True})
    assert code_of(rig.ec2.create_fleet, **much) == "InvalidParameterValue"


def test_fleet_is_described_by_id_and_deletion_terminates_instances(rig, fleet):
    made = rig.ec2.create_fleet(**fleet(2, [rig.subnet()]))
    assert rig.ec2.describe_fleets()["Fleets"] == []
    shown = rig.ec2.describe_fleets(FleetIds=[made["FleetId"]])["Fleets"][0]
    assert (shown["FleetState"], shown["Instances"]) == ("active", made["Instances"])
    kept = rig.ec2.delete_fleets(FleetIds=[made["FleetId"], "fleet-absent"], TerminateInstances=False)
    codes = {row["Error"]["Code"] for row in kept["UnsuccessfulFleetDeletions"]}
    assert codes == {"fleetNotInDeletableState", "fleetIdDoesNotExist"}
    gone = rig.ec2.delete_fleets(FleetIds=[made["FleetId"]], TerminateInstances=True)
    assert gone["SuccessfulFleetDeletions"][0]["CurrentFleetState"] == "deleted_terminating"
    ids = made["Instances"][0]["InstanceIds"]
    rig.until(lambda: rig.states(*ids) == {"terminated"})
    assert rig.ec2.describe_fleets(FleetIds=[made["FleetId"]])["Fleets"][0]["FleetState"] == "deleted"
    left = client.list_resources(rig.cloud)
    assert [left[kind] for kind in ("instances", "volumes", "interfaces", "fleets")] == [[], [], [], []]


def test_groups_cannot_be_deleted_until_their_instances_terminate(rig, fleet):
    made = rig.ec2.create_fleet(**fleet(1, [rig.subnet()]))
    group = rig.ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["gang"]}])["SecurityGroups"][0]
    assert code_of(rig.ec2.delete_security_group, GroupId=group["GroupId"]) == "DependencyViolation"
    assert code_of(rig.ec2.delete_placement_group, GroupName="gang") == "InvalidPlacementGroup.InUse"
    ids = made["Instances"][0]["InstanceIds"]
    for _ in range(2):
        assert rig.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"][0]["InstanceId"] == ids[0]
    rig.until(lambda: rig.states(*ids) == {"terminated"})
    rig.ec2.delete_security_group(GroupId=group["GroupId"])
    rig.ec2.delete_placement_group(GroupName="gang")
    assert code_of(rig.ec2.delete_placement_group, GroupName="gang") == "InvalidPlacementGroup.Unknown"
    assert (
        rig.ec2.terminate_instances(InstanceIds=ids)["TerminatingInstances"][0]["CurrentState"]["Name"] == "terminated"
    )


def test_security_group_referenced_by_another_cannot_be_deleted(rig):
    first, second = (rig.ec2.create_security_group(GroupName=name, Description="x")["GroupId"] for name in "ab")
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": first}]}]
    for owner in (first, second):
        rig.ec2.authorize_security_group_ingress(GroupId=owner, IpPermissions=rule)
    assert code_of(rig.ec2.delete_security_group, GroupId=first) == "DependencyViolation"
    rig.ec2.delete_security_group(GroupId=second)
    rig.ec2.delete_security_group(GroupId=first)


def test_placement_group_names_are_unique_per_region(rig):
    tags = [{"ResourceType": "placement-group", "Tags": [{"Key": "k", "Value": "v"}]}]
    rig.ec2.create_placement_group(GroupName="a", Strategy="cluster", TagSpecifications=tags)
    rig.ec2.create_placement_group(GroupName="b", Strategy="partition", PartitionCount=2)
    assert (
        code_of(rig.ec2.create_placement_group, GroupName="a", Strategy="cluster") == "InvalidPlacementGroup.Duplicate"
    )
    found = rig.ec2.describe_placement_groups(Filters=[{"Name": "tag:k", "Values": ["v"]}])["PlacementGroups"]
    assert [row["GroupName"] for row in found] == ["a"]
    assert code_of(rig.ec2.describe_placement_groups, GroupNames=["c"]) == "InvalidPlacementGroup.Unknown"
    assert rig.aws("ec2", "eu-west-1").describe_placement_groups()["PlacementGroups"] == []


def test_shutdown_from_inside_terminates_or_stops_as_configured(rig):
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "g5.xlarge"}
    ends = rig.ec2.run_instances(InstanceInitiatedShutdownBehavior="terminate", **run)["Instances"][0]["InstanceId"]
    stops = rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(ends, stops) == {"running"})
    for instance_id in (ends, stops):
        rig.host.power_itself_off(instance_id)
    rig.until(lambda: rig.states(ends) == {"terminated"} and rig.states(stops) == {"stopped"})
    assert rig.instances(ends)[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"
    assert len(client.list_resources(rig.cloud)["volumes"]) == 1
    rig.ec2.start_instances(InstanceIds=[stops])
    rig.until(lambda: rig.states(stops) == {"running"})


def test_failed_boot_terminates_the_instance(rig):
    rig.host.refuse = "no room for another node"
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "g5.xlarge"}
    instance_id = rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(instance_id) == {"terminated"})
    reason = rig.instances(instance_id)[0]["StateReason"]
    assert (reason["Code"], "no room" in reason["Message"]) == ("Server.InternalError", True)


def test_console_output_comes_from_the_node(rig):
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "g5.xlarge"}
    instance_id = rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(instance_id) == {"running"})
    shown = rig.ec2.get_console_output(InstanceId=instance_id, Latest=True)["Output"]
    assert shown.startswith(f"console of {instance_id}\r\n")
    assert code_of(rig.ec2.get_console_output, InstanceId="i-0123456789abcdef0") == "InvalidInstanceID.NotFound"


def test_console_without_nitro_is_posted_minutes_after_the_launch(rig):
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "m4.large"}
    instance_id = rig.ec2.run_instances(**run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(instance_id) == {"running"})
    with pytest.raises(ClientError, match=r"UnsupportedOperation.*does not support retrieving the latest console logs"):
        rig.ec2.get_console_output(InstanceId=instance_id, Latest=True)

    def shown():
        return read_console(SimpleNamespace(client=lambda _: rig.ec2), instance_id)

    assert shown() == ConsoleOutput("", live=False)
    client.advance(rig.cloud, 300)
    assert not shown().live
    assert shown().text.startswith(f"console of {instance_id}")


def test_public_parameters_return_images_of_their_region(rig):
    ami = rig.ami()
    image = rig.ec2.describe_images(ImageIds=[ami])["Images"][0]
    assert (image["Architecture"], image["RootDeviceName"]) == ("x86_64", "/dev/sda1")
    assert "simulated" in image["Name"]
    assert code_of(rig.aws("ec2", "us-west-2").describe_images, ImageIds=[ami]) == "InvalidAMIID.NotFound"
    assert code_of(rig.aws("ssm").get_parameter, Name="/aws/service/nothing") == "ParameterNotFound"
    several = rig.aws("ssm").get_parameters(Names=["/aws/service/nothing"])
    assert several["InvalidParameters"] == ["/aws/service/nothing"]


def test_retired_types_are_neither_described_nor_offered(rig):
    assert code_of(rig.ec2.describe_instance_types, InstanceTypes=["p3.2xlarge"]) == "InvalidInstanceType"
    wanted = [{"Name": "instance-type", "Values": ["p3.2xlarge", "p3dn.24xlarge"]}]
    rows = rig.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=wanted)
    found = {(row["InstanceType"], row["Location"]) for row in rows["InstanceTypeOfferings"]}
    assert found == {("p3dn.24xlarge", "us-east-1c"), ("p3dn.24xlarge", "us-east-1d")}


def test_all_launch_templates_are_listed_across_pages(rig):
    for number in range(20):
        rig.ec2.create_launch_template(
            LaunchTemplateName=f"template-{number}", LaunchTemplateData={"InstanceType": "g5.xlarge"}
        )
    assert len(rig.ec2.describe_launch_templates()["LaunchTemplates"]) == 20
    pages = rig.ec2.get_paginator("describe_launch_templates").paginate(PaginationConfig={"PageSize": 7})
    assert sum(len(page["LaunchTemplates"]) for page in pages) == 20


def test_deleting_missing_resources_behaves_as_on_aws(rig):
    for _ in range(2):
        rig.ec2.delete_key_pair(KeyName="absent")
    assert code_of(rig.ec2.delete_security_group, GroupId="sg-0123456789abcdef0") == "InvalidGroup.NotFound"
    assert code_of(rig.aws("iam").delete_role, RoleName="absent") == "NoSuchEntity"


def test_unsupported_operations_are_rejected_with_an_error(rig):
    assert code_of(rig.ec2.get_spot_placement_scores, TargetCapacity=1) == "UnsupportedOperation"
    with pytest.raises(ClientError) as err:
        rig.aws("savingsplans").describe_savings_plans()
    assert err.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 501)


def test_user_data_reaches_the_node_decoded_from_base64(rig, template):
    version = {"LaunchTemplateId": template, "Version": "$Latest"}
    run = rig.ec2.run_instances(MinCount=1, MaxCount=1, LaunchTemplate=version)
    assert len(run["Instances"]) == 1
    rig.until(lambda: rig.host.started)
    assert base64.b64encode(rig.host.started[0].user_data) == base64.b64encode(b"#!/bin/sh\n")


@pytest.mark.parametrize("name", ["ab", "a name", "n" * 129])
def test_malformed_launch_template_name_is_rejected(rig, name):
    with pytest.raises(ClientError) as caught:
        rig.ec2.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"InstanceType": "g5.xlarge"})
    assert caught.value.response["Error"]["Code"] == "InvalidLaunchTemplateName.MalformedException"
