"""Arguments of the dry runs and read-only calls that test permissions. None of them refers to an existing resource."""

from collections.abc import Mapping
from typing import Any

_TAG = {"Key": "cloudgpu:owner", "Value": "doctor"}
_NAME = "cloudgpu-doctor"
_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f doctor"
_FLEET_TYPE = "g4dn.xlarge"
_PERMISSIONS = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "192.0.2.1/32"}]}]


def _unused_id(kind: str) -> str:
    """Return a well-formed ID that does not belong to any resource."""
    return f"{kind}-00000000000000000"


def _tagged(kind: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": [_TAG]}]}


_GROUP, _VPC, _SUBNET = _unused_id("sg"), _unused_id("vpc"), _unused_id("subnet")
_ROUTES, _GATEWAY, _TEMPLATE = _unused_id("rtb"), _unused_id("igw"), _unused_id("lt")
_ADDRESS, _RULES = _unused_id("eipalloc"), {"GroupId": _GROUP, "IpPermissions": _PERMISSIONS}
_CAPACITY = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "on-demand"}

EC2_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "GetConsoleOutput": {"InstanceId": _unused_id("i")},
    "AllocateAddress": {"Domain": "vpc", **_tagged("elastic-ip")},
    "AssociateAddress": {"AllocationId": _ADDRESS, "NetworkInterfaceId": _unused_id("eni")},
    "AssociateRouteTable": {"RouteTableId": _ROUTES, "SubnetId": _SUBNET},
    "AttachVolume": {"Device": "/dev/sdf", "InstanceId": _unused_id("i"), "VolumeId": _unused_id("vol")},
    "AttachInternetGateway": {"InternetGatewayId": _GATEWAY, "VpcId": _VPC},
    "AuthorizeSecurityGroupEgress": _RULES,
    "AuthorizeSecurityGroupIngress": _RULES,
    "CreateFleet": {
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": {"LaunchTemplateId": _TEMPLATE, "Version": "1"}}],
        "TargetCapacitySpecification": _CAPACITY,
        "Type": "instant",
        **_tagged("fleet"),
    },
    "CreateImage": {"InstanceId": _unused_id("i"), "Name": _NAME, **_tagged("image")},
    "CreateInternetGateway": _tagged("internet-gateway"),
    "CreateLaunchTemplate": {
        "LaunchTemplateName": _NAME,
        "LaunchTemplateData": {"InstanceType": _FLEET_TYPE},
        **_tagged("launch-template"),
    },
    "CreateLaunchTemplateVersion": {"LaunchTemplateId": _TEMPLATE, "LaunchTemplateData": {}},
    "CreateNatGateway": {"SubnetId": _SUBNET, "AllocationId": _ADDRESS, **_tagged("natgateway")},
    "CreatePlacementGroup": {"GroupName": _NAME, "Strategy": "cluster", **_tagged("placement-group")},
    "CreateRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": _GATEWAY},
    "CreateRouteTable": {"VpcId": _VPC, **_tagged("route-table")},
    "CreateSecurityGroup": {"GroupName": _NAME, "Description": "doctor", **_tagged("security-group")},
    "CreateSubnet": {"VpcId": _VPC, "CidrBlock": "10.0.0.0/24", **_tagged("subnet")},
    "CreateTags": {"Resources": [_unused_id("i")], "Tags": [_TAG]},
    "CreateVpc": {"CidrBlock": "10.0.0.0/16", **_tagged("vpc")},
    "CreateVpcEndpoint": {"VpcId": _VPC, "ServiceName": "com.amazonaws.us-east-1.s3", **_tagged("vpc-endpoint")},
    "CreateVolume": {"AvailabilityZone": "us-east-1a", "Size": 1, **_tagged("volume")},
    "DeleteFleets": {"FleetIds": ["fleet-00000000-0000-0000-0000-000000000000"], "TerminateInstances": True},
    "DeleteInternetGateway": {"InternetGatewayId": _GATEWAY},
    "DeleteKeyPair": {"KeyName": _NAME},
    "DeleteLaunchTemplate": {"LaunchTemplateId": _TEMPLATE},
    "DeleteNatGateway": {"NatGatewayId": _unused_id("nat")},
    "DeleteNetworkInterface": {"NetworkInterfaceId": _unused_id("eni")},
    "DeletePlacementGroup": {"GroupName": _NAME},
    "DeleteRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0"},
    "DeleteRouteTable": {"RouteTableId": _ROUTES},
    "DeleteSecurityGroup": {"GroupId": _GROUP},
    "DeleteSnapshot": {"SnapshotId": _unused_id("snap")},
    "DeleteSubnet": {"SubnetId": _SUBNET},
    "DeleteTags": {"Resources": [_unused_id("i")], "Tags": [{"Key": "cloudgpu:run"}]},
    "DeleteVolume": {"VolumeId": _unused_id("vol")},
    "DeleteVpc": {"VpcId": _VPC},
    "DeleteVpcEndpoints": {"VpcEndpointIds": [_unused_id("vpce")]},
    "DeregisterImage": {"ImageId": _unused_id("ami")},
    "DetachInternetGateway": {"InternetGatewayId": _GATEWAY, "VpcId": _VPC},
    "DisassociateAddress": {"AssociationId": _unused_id("eipassoc")},
    "DisassociateRouteTable": {"AssociationId": _unused_id("rtbassoc")},
    "ImportKeyPair": {"KeyName": _NAME, "PublicKeyMaterial": _KEY, **_tagged("key-pair")},
    "ModifyLaunchTemplate": {"LaunchTemplateId": _TEMPLATE, "DefaultVersion": "1"},
    "ModifyVpcEndpoint": {"VpcEndpointId": _unused_id("vpce"), "AddRouteTableIds": [_ROUTES]},
    "ModifyVolume": {"VolumeId": _unused_id("vol"), "Size": 2},
    "ReleaseAddress": {"AllocationId": _ADDRESS},
    "ReplaceRoute": {"RouteTableId": _ROUTES, "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": _GATEWAY},
    "RevokeSecurityGroupEgress": _RULES,
    "RevokeSecurityGroupIngress": _RULES,
    "RunInstances": {
        "ImageId": _unused_id("ami"),
        "InstanceType": _FLEET_TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [{"ResourceType": kind, "Tags": [_TAG]} for kind in ("instance", "volume")],
    },
    "TerminateInstances": {"InstanceIds": [_unused_id("i")]},
    "UpdateSecurityGroupRuleDescriptionsEgress": _RULES,
    "UpdateSecurityGroupRuleDescriptionsIngress": _RULES,
}
"""EC2 operation -> arguments of its dry run. Operations without an entry need no arguments."""

WITHOUT_DRY_RUN = frozenset({"ModifySubnetAttribute", "ModifyVpcAttribute"})
"""EC2 operations that do not support dry runs."""

IMAGE_PARAMETER = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
"""SSM parameter with the ID of a public image. EC2 checks that the image exists before it checks the permission."""

HARMLESS_CALLS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "sts:GetCallerIdentity": ("sts", "get_caller_identity", {}),
    "iam:ListInstanceProfiles": ("iam", "list_instance_profiles", {"MaxItems": 1}),
    "iam:ListRoles": ("iam", "list_roles", {"MaxItems": 1}),
    "s3:ListAllMyBuckets": ("s3", "list_buckets", {}),
    "pricing:GetProducts": ("pricing", "get_products", {"ServiceCode": "AmazonEC2", "MaxResults": 1}),
    "servicequotas:ListAWSDefaultServiceQuotas": (
        "service-quotas",
        "list_aws_default_service_quotas",
        {"ServiceCode": "ec2"},
    ),
    "servicequotas:ListServiceQuotas": ("service-quotas", "list_service_quotas", {"ServiceCode": "ec2"}),
    "ssm:GetParameter": (
        "ssm",
        "get_parameter",
        {"Name": IMAGE_PARAMETER},
    ),
}
"""Action -> boto3 service, client method and arguments of a read-only call that tests the permission."""
