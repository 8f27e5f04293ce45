"""Security groups of an instance and of its network interfaces.

Facts: EC2 User Guide, "Change the security groups for your instance": an instance has the groups of its primary
network interface, and every other interface has its own.
"""

import pytest

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def instance(rig):
    """Launch an instance whose two interfaces have different groups; return its ID and the groups by name."""
    subnet = rig.subnet()
    vpc = rig.ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    groups = {
        name: rig.ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
        for name in ("first", "second", "third")
    }
    rows = [
        {"DeviceIndex": index, "SubnetId": subnet, "Groups": [groups[name]]}
        for index, name in enumerate(("first", "second"))
    ]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "t3a.small"}
    made = rig.ec2.run_instances(NetworkInterfaces=rows, **run)["Instances"][0]["InstanceId"]
    return made, groups


def groups_of(rig, instance_id: str) -> tuple[set[str], list[set[str]]]:
    """Return the names of the instance's groups, and those of each interface in order."""
    (row,) = rig.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"]
    interfaces = sorted(row["NetworkInterfaces"], key=lambda interface: interface["Attachment"]["DeviceIndex"])
    names = [{group["GroupName"] for group in interface["Groups"]} for interface in interfaces]
    return {group["GroupName"] for group in row["SecurityGroups"]}, names


def test_instance_has_the_groups_of_its_primary_interface_only(rig, instance):
    made, _ = instance
    assert groups_of(rig, made) == ({"first"}, [{"first"}, {"second"}])


def test_groups_of_the_primary_interface_are_replaced_and_not_added(rig, instance):
    made, groups = instance
    (row,) = rig.ec2.describe_instances(InstanceIds=[made])["Reservations"][0]["Instances"]
    primary = next(one for one in row["NetworkInterfaces"] if one["Attachment"]["DeviceIndex"] == 0)
    changed = {"NetworkInterfaceId": primary["NetworkInterfaceId"], "Groups": [groups["third"]]}
    rig.ec2.modify_network_interface_attribute(**changed)
    assert groups_of(rig, made) == ({"third"}, [{"third"}, {"second"}])


def test_groups_of_an_instance_become_those_of_its_primary_interface(rig, instance):
    made, groups = instance
    rig.ec2.modify_instance_attribute(InstanceId=made, Groups=[groups["third"]])
    assert groups_of(rig, made) == ({"third"}, [{"third"}, {"second"}])
