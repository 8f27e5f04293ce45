"""SSH access to nodes: commands authorize the caller's current address, and `up` repairs changed rules."""

import boto3
import pytest

pytestmark = pytest.mark.rehearsal

ELSEWHERE = "203.0.113.7/32"
HERE = "127.0.0.1/32"
REACHING = (
    ("ssh", "plain", "--", "true"),
    ("extend", "plain", "--by", "10m"),
    ("train", "plain", "--cluster", "plain", "--yes"),
)


class Door:
    """The security group of the only cluster, as the endpoint reports it."""

    def __init__(self, workspace):
        cloud = workspace.cloud
        key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
        self.ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)

    def group(self):
        tagged = [{"Name": "tag:cloudgpu:cluster", "Values": ["plain"]}]
        (group,) = self.ec2.describe_security_groups(Filters=tagged)["SecurityGroups"]
        return group

    def rules(self):
        found = self.group()
        return [
            (side, row["IpProtocol"], one.get("CidrIp") or one.get("CidrIpv6") or one["GroupId"])
            for side in ("IpPermissions", "IpPermissionsEgress")
            for row in found[side]
            for one in (*row.get("IpRanges", ()), *row.get("Ipv6Ranges", ()), *row.get("UserIdGroupPairs", ()))
        ]

    def admitted(self):
        return {peer for side, protocol, peer in self.rules() if (side, protocol) == ("IpPermissions", "tcp")}


def test_commands_that_connect_to_nodes_authorize_the_caller_address(workspace):
    workspace.recipe()
    away = {"CLOUDGPU_SSH_CIDR": ELSEWHERE}
    workspace.run("up", "plain", "--yes", "--no-wait", env=away)  # from elsewhere, these nodes are out of reach
    door = Door(workspace)
    assert door.admitted() == {ELSEWHERE}
    for command in REACHING:
        workspace.run(*command)
        assert door.admitted() == {HERE}, command
        workspace.run("status", "--refresh", env=away)
        assert door.admitted() == {ELSEWHERE}
    # What only looks at records asks nobody.
    workspace.run("status")
    assert door.admitted() == {ELSEWHERE}
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_up_repairs_changed_security_group_rules(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    door = Door(workspace)
    before, group = sorted(door.rules()), door.group()["GroupId"]
    world = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    itself = next(row for row in door.group()["IpPermissions"] if row["IpProtocol"] == "-1")
    door.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[world])
    door.ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[itself])
    said = workspace.run("up", "plain", "--yes").stdout
    assert f"repaired: security group {group}: an extra rule allowed tcp 22 from 0.0.0.0/0" in said
    assert f"repaired: security group {group}: the rule that allows all traffic from {group} was missing" in said
    assert sorted(door.rules()) == before
    assert "put right" not in workspace.run("up", "plain", "--yes").stdout
    workspace.run("down", "plain")
    assert workspace.left() == {}
