"""Subnets and security groups with IPv6.

Facts: moto tests/test_ec2/test_subnets.py and test_security_groups.py, verified against AWS by its authors.
"""

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

NO_BLOCK = ("MissingParameter", "Either 'ipv6CidrBlock' or 'ipv6IpamPoolId' should be provided.")
BOTH_FAMILIES = (
    "InvalidParameterCombination",
    "When specifying ipv4 parameters, cidrBlock or ipv4IpamPoolId, you cannot set ipv6Native to true.",
)


@pytest.fixture
def vpc(rig):
    return str(rig.ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"])


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ({}, NO_BLOCK),
        ({"CidrBlock": "10.1.0.0/24"}, NO_BLOCK),
        ({"CidrBlock": "10.1.0.0/24", "Ipv6CidrBlock": "2001:db8:1::/64"}, BOTH_FAMILIES),
    ],
)
def test_subnet_of_ipv6_alone_needs_a_block_of_ipv6_and_none_of_ipv4(rig, vpc, blocks, error):
    with pytest.raises(ClientError) as err:
        rig.ec2.create_subnet(VpcId=vpc, Ipv6Native=True, **blocks)
    answer = err.value.response["Error"]
    assert (answer["Code"], answer["Message"]) == error


def test_host_names_of_a_subnet_are_by_address_until_they_are_changed(rig, vpc):
    made = rig.ec2.create_subnet(VpcId=vpc, CidrBlock="10.1.0.0/24")["Subnet"]
    options = {"HostnameType": "ip-name", "EnableResourceNameDnsARecord": False}
    assert made["PrivateDnsNameOptionsOnLaunch"] == {**options, "EnableResourceNameDnsAAAARecord": False}
    rig.ec2.modify_subnet_attribute(SubnetId=made["SubnetId"], EnableResourceNameDnsARecordOnLaunch={"Value": True})
    shown = rig.ec2.describe_subnets(SubnetIds=[made["SubnetId"]])["Subnets"][0]["PrivateDnsNameOptionsOnLaunch"]
    assert shown == {**options, "EnableResourceNameDnsARecord": True, "EnableResourceNameDnsAAAARecord": False}


def test_group_in_a_network_with_ipv6_allows_all_egress_of_both_families(rig):
    vpc_id = rig.ec2.create_vpc(CidrBlock="10.2.0.0/16", AmazonProvidedIpv6CidrBlock=True)["Vpc"]["VpcId"]
    group = rig.ec2.create_security_group(GroupName="both", Description="both", VpcId=vpc_id)["GroupId"]
    (rule,) = rig.ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissionsEgress"]
    assert [row["CidrIp"] for row in rule["IpRanges"]] == ["0.0.0.0/0"]
    assert [row["CidrIpv6"] for row in rule["Ipv6Ranges"]] == ["::/0"]
