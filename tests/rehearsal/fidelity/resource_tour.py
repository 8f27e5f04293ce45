"""Create one resource of every type in a rehearsal cloud, read and delete it, and keep all responses."""

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.rehearsal.fidelity.situations import Situation

_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGCHCKJNLxRUh3U3Lw1QvU6cZv0cT3Y7v0H1lq0m1v8Z tour"
_TAGS = [{"Key": "tour", "Value": "1"}]
_WAIT_S = 60.0


@dataclass
class ResourceTour:
    """A tour of the services that cloudgpu calls; `responses` has the responses by service and operation."""

    situation: Situation
    responses: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Make all calls and return their responses."""
        self._ec2_network()
        self._ec2_instances()
        self._ec2_reads()
        self._ec2_changes()
        self._iam()
        self._s3()
        self._storage()
        self._scheduler()
        self._account()
        return self.responses

    def call(self, service: str, operation: str, **request: Any) -> dict[str, Any]:
        """Make a call and keep its response."""
        client = self.situation.client(service)
        method = client.meta.method_to_api_mapping
        name = next(python for python, api in method.items() if api == operation)
        response: dict[str, Any] = getattr(client, name)(**request)
        self.responses.setdefault(f"{service} {operation}", []).append(response)
        return response

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the rehearsal cloud does in the background."""
        deadline = time.monotonic() + _WAIT_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _tagged(self, kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": _TAGS}]

    def _ec2_network(self) -> None:
        vpc = self.call("ec2", "CreateVpc", CidrBlock="10.0.0.0/16", TagSpecifications=self._tagged("vpc"))["Vpc"][
            "VpcId"
        ]
        self.vpc = vpc
        self.call("ec2", "ModifyVpcAttribute", VpcId=vpc, EnableDnsHostnames={"Value": True})
        subnet = self.call(
            "ec2", "CreateSubnet", VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1c",
            TagSpecifications=self._tagged("subnet"),
        )  # fmt: skip
        self.subnet = subnet["Subnet"]["SubnetId"]
        self.call("ec2", "ModifySubnetAttribute", SubnetId=self.subnet, MapPublicIpOnLaunch={"Value": True})
        gateway = self.call("ec2", "CreateInternetGateway", TagSpecifications=self._tagged("internet-gateway"))
        self.gateway = gateway["InternetGateway"]["InternetGatewayId"]
        self.call("ec2", "AttachInternetGateway", InternetGatewayId=self.gateway, VpcId=vpc)
        table = self.call("ec2", "CreateRouteTable", VpcId=vpc, TagSpecifications=self._tagged("route-table"))
        self.table = table["RouteTable"]["RouteTableId"]
        route = {"RouteTableId": self.table, "DestinationCidrBlock": "0.0.0.0/0"}
        self.call("ec2", "CreateRoute", **route, GatewayId=self.gateway)
        association = self.call("ec2", "AssociateRouteTable", RouteTableId=self.table, SubnetId=self.subnet)
        self.association = association["AssociationId"]
        self.group = self.call(
            "ec2", "CreateSecurityGroup", GroupName="tour", Description="tour", VpcId=vpc,
            TagSpecifications=self._tagged("security-group"),
        )["GroupId"]  # fmt: skip
        permission = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}
        own = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}
        self.permissions = [permission, own]
        self.call("ec2", "AuthorizeSecurityGroupIngress", GroupId=self.group, IpPermissions=self.permissions)
        self.call("ec2", "AuthorizeSecurityGroupEgress", GroupId=self.group, IpPermissions=[own])
        address = self.call("ec2", "AllocateAddress", Domain="vpc", TagSpecifications=self._tagged("elastic-ip"))
        self.nat = self.call(
            "ec2", "CreateNatGateway", SubnetId=self.subnet, AllocationId=address["AllocationId"],
            TagSpecifications=self._tagged("natgateway"),
        )["NatGateway"]["NatGatewayId"]  # fmt: skip
        self.endpoint = self.call(
            "ec2", "CreateVpcEndpoint", VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3",
            RouteTableIds=[self.table], TagSpecifications=self._tagged("vpc-endpoint"),
        )["VpcEndpoint"]["VpcEndpointId"]  # fmt: skip

    def _ec2_instances(self) -> None:
        self.call("ec2", "ImportKeyPair", KeyName="tour", PublicKeyMaterial=_KEY,
                  TagSpecifications=self._tagged("key-pair"))  # fmt: skip
        self.call("ec2", "CreatePlacementGroup", GroupName="tour", Strategy="cluster")
        self.iam_role()
        launch = {
            "ImageId": self.situation.image_id, "InstanceType": "p3dn.24xlarge", "KeyName": "tour",
            "UserData": base64.b64encode(b"#!/bin/sh\n").decode(), "IamInstanceProfile": {"Name": "tour"},
            "NetworkInterfaces": [{
                "DeviceIndex": 0, "SubnetId": self.subnet, "Groups": [self.group], "AssociatePublicIpAddress": True,
            }],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "Encrypted": True}}],
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": _TAGS} for kind in ("instance", "volume", "network-interface")
            ],
        }  # fmt: skip
        self.template = self.call(
            "ec2", "CreateLaunchTemplate", LaunchTemplateName="tour", LaunchTemplateData=launch,
            TagSpecifications=self._tagged("launch-template"),
        )["LaunchTemplate"]["LaunchTemplateId"]  # fmt: skip
        self.call("ec2", "CreateLaunchTemplateVersion", LaunchTemplateId=self.template, LaunchTemplateData=launch)
        self.call("ec2", "ModifyLaunchTemplate", LaunchTemplateId=self.template, DefaultVersion="2")
        self.instance = self.call("ec2", "RunInstances", MinCount=1, MaxCount=1, ClientToken="tour", **launch)[
            "Instances"
        ][0]["InstanceId"]
        specification = {"LaunchTemplateId": self.template, "Version": "$Default"}
        self.fleet = self.call(
            "ec2", "CreateFleet", Type="instant", ClientToken="fleet",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification}],
            TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"},
            TagSpecifications=self._tagged("fleet"),
        )["FleetId"]  # fmt: skip
        ec2 = self.situation.client("ec2")

        def running() -> bool:
            pages = ec2.describe_instances()["Reservations"]
            return all(row["State"]["Name"] == "running" for page in pages for row in page["Instances"])

        self.until(running)
        self.volume = self.call(
            "ec2", "CreateVolume", AvailabilityZone="us-east-1c", Size=8, VolumeType="gp3", Encrypted=True,
            TagSpecifications=self._tagged("volume"),
        )["VolumeId"]  # fmt: skip
        self.call("ec2", "AttachVolume", VolumeId=self.volume, InstanceId=self.instance, Device="/dev/sdf")
        self.image = self.call(
            "ec2", "CreateImage", InstanceId=self.instance, Name="tour", NoReboot=True,
            TagSpecifications=[*self._tagged("image"), *self._tagged("snapshot")],
        )["ImageId"]  # fmt: skip
        address = self.call("ec2", "AllocateAddress", Domain="vpc")
        interface = ec2.describe_instances(InstanceIds=[self.instance])["Reservations"][0]["Instances"][0]
        self.allocation = address["AllocationId"]
        self.call(
            "ec2", "AssociateAddress", AllocationId=self.allocation,
            NetworkInterfaceId=interface["NetworkInterfaces"][0]["NetworkInterfaceId"],
        )  # fmt: skip
        ec2.create_capacity_reservation(
            InstanceType="p3dn.24xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1c", InstanceCount=1,
            TagSpecifications=self._tagged("capacity-reservation"),
        )  # fmt: skip

    def _ec2_reads(self) -> None:
        for operation in (
            "DescribeAccountAttributes", "DescribeAddresses", "DescribeAvailabilityZones",
            "DescribeCapacityReservations", "DescribeInstanceTypeOfferings", "DescribeInstances",
            "DescribeInternetGateways", "DescribeKeyPairs", "DescribeLaunchTemplates", "DescribeNetworkAcls",
            "DescribeNetworkInterfaces", "DescribePlacementGroups", "DescribeRegions",
            "DescribeRouteTables", "DescribeSecurityGroups", "DescribeSubnets", "DescribeVolumes",
            "DescribeVpcEndpoints", "DescribeVpcs", "DescribeNatGateways", "DescribeNatGateways",
        ):  # fmt: skip
            self.call("ec2", operation)
        self.call("ec2", "DescribeImages", ImageIds=[self.image, self.situation.image_id])
        self.call("ec2", "DescribeInstanceTypes", InstanceTypes=["p3dn.24xlarge", "g5.xlarge", "p4d.24xlarge"])
        self.call("ec2", "DescribeFleets", FleetIds=[self.fleet])
        self.call("ec2", "DescribeSnapshots", OwnerIds=["self"])
        self.call("ec2", "DescribeSpotPriceHistory", InstanceTypes=["p3dn.24xlarge"])
        self.call("ec2", "GetConsoleOutput", InstanceId=self.instance)

    def _ec2_changes(self) -> None:
        self.call("ec2", "ModifyVolume", VolumeId=self.volume, Size=16)
        self.call("ec2", "ModifyVpcEndpoint", VpcEndpointId=self.endpoint, RemoveRouteTableIds=[self.table])
        self.call("ec2", "RevokeSecurityGroupIngress", GroupId=self.group, IpPermissions=self.permissions[:1])
        self.call("ec2", "TerminateInstances", InstanceIds=[self.instance])
        self.call("ec2", "DeleteFleets", FleetIds=[self.fleet], TerminateInstances=True)
        self.call("ec2", "DeleteVpcEndpoints", VpcEndpointIds=[self.endpoint])
        self.call("ec2", "DeleteNatGateway", NatGatewayId=self.nat)
        self.call("ec2", "DeleteLaunchTemplate", LaunchTemplateId=self.template)
        self.call("ec2", "DeleteKeyPair", KeyName="tour")

    def iam_role(self) -> None:
        """Create a role that EC2 and the scheduler may assume, in an instance profile."""
        services = ["ec2.amazonaws.com", "scheduler.amazonaws.com"]
        statement = {"Effect": "Allow", "Principal": {"Service": services}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        role = self.call("iam", "CreateRole", RoleName="tour", AssumeRolePolicyDocument=trust, Tags=_TAGS)["Role"]
        self.role = role["Arn"]
        self.call("iam", "CreateInstanceProfile", InstanceProfileName="tour", Tags=_TAGS)
        self.call("iam", "AddRoleToInstanceProfile", InstanceProfileName="tour", RoleName="tour")

    def _iam(self) -> None:
        policy = json.dumps(
            {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        )
        self.call("iam", "PutRolePolicy", RoleName="tour", PolicyName="inline", PolicyDocument=policy)
        made = self.situation.client("iam").create_policy(PolicyName="tour", PolicyDocument=policy)
        arn = made["Policy"]["Arn"]
        self.call("iam", "AttachRolePolicy", RoleName="tour", PolicyArn=arn)
        for operation in (
            "GetRole", "ListAttachedRolePolicies", "ListInstanceProfilesForRole", "ListRolePolicies", "ListRoleTags",
        ):  # fmt: skip
            self.call("iam", operation, RoleName="tour")
        self.call("iam", "GetInstanceProfile", InstanceProfileName="tour")
        self.call("iam", "GetRolePolicy", RoleName="tour", PolicyName="inline")
        self.call("iam", "ListInstanceProfiles")
        self.call("iam", "ListRoles")

    def _s3(self) -> None:
        name = self.situation.name("cloudgpu-tour")
        self.call("s3", "CreateBucket", Bucket=name)
        self.call("s3", "PutBucketTagging", Bucket=name, Tagging={"TagSet": _TAGS})
        self.call("s3", "PutObject", Bucket=name, Key="key", Body=b"content")
        self.call("s3", "CreateMultipartUpload", Bucket=name, Key="parts")
        upload = {"Bucket": name, "Key": "whole"}
        upload["UploadId"] = self.call("s3", "CreateMultipartUpload", **upload)["UploadId"]
        part = {"PartNumber": 1, "ETag": self.call("s3", "UploadPart", **upload, PartNumber=1, Body=b"part")["ETag"]}
        self.call("s3", "CompleteMultipartUpload", **upload, MultipartUpload={"Parts": [part]})
        for operation in (
            "GetBucketEncryption", "GetBucketTagging", "GetPublicAccessBlock", "ListMultipartUploads",
            "ListObjectVersions", "ListObjectsV2", "HeadBucket",
        ):  # fmt: skip
            self.call("s3", operation, Bucket=name)
        self.call("s3", "ListBuckets")
        self.call("s3", "GetObject", Bucket=name, Key="key")
        self.call("s3", "HeadObject", Bucket=name, Key="key")
        self.call("s3", "DeleteObjects", Bucket=name, Delete={"Objects": [{"Key": "key"}]})

    def _storage(self) -> None:
        made = self.call("efs", "CreateFileSystem", CreationToken="tour", Encrypted=True, Tags=_TAGS)
        target = self.call("efs", "CreateMountTarget", FileSystemId=made["FileSystemId"], SubnetId=self.subnet)
        self.call("efs", "DescribeFileSystems")
        self.call("efs", "DescribeMountTargets", FileSystemId=made["FileSystemId"])
        self.call("efs", "DescribeMountTargetSecurityGroups", MountTargetId=target["MountTargetId"])
        lustre = self.call(
            "fsx", "CreateFileSystem", FileSystemType="LUSTRE", FileSystemTypeVersion="2.15", StorageCapacity=1200,
            SubnetIds=[self.subnet], LustreConfiguration={"DeploymentType": "SCRATCH_2"}, Tags=_TAGS,
        )["FileSystem"]["FileSystemId"]  # fmt: skip
        fsx = self.situation.client("fsx")
        self.until(lambda: fsx.describe_file_systems()["FileSystems"][0]["Lifecycle"] == "AVAILABLE")
        self.call("fsx", "DescribeFileSystems")
        self.call("fsx", "UpdateFileSystem", FileSystemId=lustre, StorageCapacity=2400)
        self.call("fsx", "DeleteFileSystem", FileSystemId=lustre)

    def _scheduler(self) -> None:
        schedule = {
            "Name": "tour", "GroupName": "tour", "ScheduleExpression": "at(2100-01-01T00:00:00)",
            "FlexibleTimeWindow": {"Mode": "OFF"},
            "Target": {
                "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", "RoleArn": self.role, "Input": "{}",
            },
        }  # fmt: skip
        self.call("scheduler", "CreateScheduleGroup", Name="tour", Tags=_TAGS)
        self.call("scheduler", "CreateSchedule", **schedule)
        self.call("scheduler", "GetSchedule", Name="tour", GroupName="tour")
        self.call("scheduler", "UpdateSchedule", **schedule)
        self.call("scheduler", "GetScheduleGroup", Name="tour")
        self.call("scheduler", "ListScheduleGroups")

    def _account(self) -> None:
        self.call("sts", "GetCallerIdentity")
        self.call("service-quotas", "ListServiceQuotas", ServiceCode="ec2")
        self.call("service-quotas", "ListAWSDefaultServiceQuotas", ServiceCode="ec2")
        parameter = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
        self.call("ssm", "GetParameter", Name=parameter)
        self.call(
            "pricing", "GetProducts", ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "p3dn.24xlarge"}],
        )  # fmt: skip
