"""The situations in which recorded errors occur. Each function creates resources and returns their names."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ACCOUNT = "123456789012"
"""Account of every rehearsal cloud."""
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Situation:
    """A running rehearsal cloud and its clients."""

    client: Callable[..., Any]
    """Takes a service and optionally a region, and returns a boto3 client."""
    image_id: str
    subnet_id: str

    def name(self, prefix: str) -> str:
        """Return a name that no other situation uses."""
        return f"{prefix}-{next(_NUMBERS)}"


def nothing(_: Situation) -> Mapping[str, str]:
    """Create nothing."""
    return {}


def group_open_for_ssh(situation: Situation) -> Mapping[str, str]:
    """Create a security group with a rule for port 22 from anywhere."""
    ec2, name = situation.client("ec2"), situation.name("open")
    group = ec2.create_security_group(GroupName=name, Description=name)["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0")
    return {"group": group}


def attached_gateway(situation: Situation) -> Mapping[str, str]:
    """Create a VPC with an internet gateway."""
    ec2 = situation.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(VpcId=vpc, InternetGatewayId=gateway)
    return {"gateway": gateway, "vpc": vpc}


def subnet_in_use(situation: Situation) -> Mapping[str, str]:
    """Create a subnet with a network interface."""
    ec2 = situation.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
    ec2.create_network_interface(SubnetId=subnet)
    return {"subnet": subnet, "vpc": vpc}


def security_group_in_use(situation: Situation) -> Mapping[str, str]:
    """Create a security group of a network interface."""
    ec2, name = situation.client("ec2"), situation.name("used")
    group = ec2.create_security_group(GroupName=name, Description=name)["GroupId"]
    ec2.create_network_interface(SubnetId=situation.subnet_id, Groups=[group])
    return {"group": group}


def associated_address(situation: Situation) -> Mapping[str, str]:
    """Associate an Elastic IP address with a network interface of the default VPC."""
    ec2 = situation.client("ec2")
    made = ec2.allocate_address(Domain="vpc")
    interface = ec2.create_network_interface(SubnetId=situation.subnet_id)["NetworkInterface"]
    ec2.associate_address(AllocationId=made["AllocationId"], NetworkInterfaceId=interface["NetworkInterfaceId"])
    return {"allocation": made["AllocationId"], "address": made["PublicIp"]}


def route_table(situation: Situation) -> Mapping[str, str]:
    """Create a route table."""
    ec2 = situation.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    return {"table": ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"], "vpc": vpc}


def placement_group(situation: Situation) -> Mapping[str, str]:
    """Create a placement group."""
    name = situation.name("group")
    situation.client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    return {"group": name}


def launch_parameters(situation: Situation) -> Mapping[str, str]:
    """Return the image and subnet of the default VPC."""
    return {"image": situation.image_id, "subnet": situation.subnet_id}


def instance(situation: Situation, **request: Any) -> str:
    """Launch an instance and return its id."""
    made = situation.client("ec2").run_instances(
        MinCount=1, MaxCount=1, ImageId=situation.image_id, InstanceType="g5.xlarge", SubnetId=situation.subnet_id,
        **request,
    )  # fmt: skip
    return str(made["Instances"][0]["InstanceId"])


def termination_protected_instance(situation: Situation) -> Mapping[str, str]:
    """Launch an instance that the API may not terminate."""
    return {"instance": instance(situation, DisableApiTermination=True)}


def stop_protected_instance(situation: Situation) -> Mapping[str, str]:
    """Launch an instance that the API may not stop."""
    return {"instance": instance(situation, DisableApiStop=True)}


def role(situation: Situation) -> Mapping[str, str]:
    """Create a role."""
    name = situation.name("role")
    statement = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    situation.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    return {"role": name, "account": ACCOUNT}


def service_linked_role(situation: Situation) -> Mapping[str, str]:
    """Create the service-linked role for Spot."""
    made = situation.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    return {"role": made["Role"]["RoleName"]}


def empty_profile(situation: Situation) -> Mapping[str, str]:
    """Create an instance profile without a role."""
    name = situation.name("profile")
    situation.client("iam").create_instance_profile(InstanceProfileName=name)
    return {"profile": name}


def bucket(situation: Situation) -> Mapping[str, str]:
    """Create an empty bucket in us-east-1."""
    name = situation.name("cloudgpu-recorded")
    situation.client("s3").create_bucket(Bucket=name)
    return {"bucket": name}


def bucket_in_us_east_2(situation: Situation) -> Mapping[str, str]:
    """Create an empty bucket in us-east-2."""
    name = situation.name("cloudgpu-recorded")
    configuration = {"LocationConstraint": "us-east-2"}
    situation.client("s3", "us-east-2").create_bucket(Bucket=name, CreateBucketConfiguration=configuration)
    return {"bucket": name}


def bucket_without_public_access_block(situation: Situation) -> Mapping[str, str]:
    """Create a bucket and delete its public access block."""
    made = bucket(situation)
    situation.client("s3").delete_public_access_block(Bucket=made["bucket"])
    return made


def file_system_in_creation(situation: Situation) -> Mapping[str, str]:
    """Start to create a Lustre file system."""
    made = situation.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        FileSystemTypeVersion="2.15",
        StorageCapacity=1200,
        SubnetIds=[situation.subnet_id],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )
    return {"file_system": made["FileSystem"]["FileSystemId"]}
