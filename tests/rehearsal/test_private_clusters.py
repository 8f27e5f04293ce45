"""Nodes without public access, reached through Session Manager or through the user's own bastion."""

import json
import subprocess

import boto3
import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

SSM = {"CLOUDGPU_REACH": "ssm"}
ALL_PRIVATE = {**SSM, "CLOUDGPU_PUBLIC_ADDRESS": "private"}


class Account:
    """The simulated account, as any other client sees it."""

    def __init__(self, workspace):
        self.workspace = workspace

    def client(self, service):
        cloud = self.workspace.cloud
        key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
        return boto3.client(service, region_name="us-east-1", endpoint_url=cloud.url, **key)

    def open_ports(self):
        groups = self.client("ec2").describe_security_groups(
            Filters=[{"Name": "tag-key", "Values": ["cloudgpu:cluster"]}]
        )["SecurityGroups"]
        return [
            row for group in groups for row in group["IpPermissions"] if row.get("IpRanges") or row.get("Ipv6Ranges")
        ]

    def session(self, instance_id):
        return self.client("ssm").start_session(
            Target=instance_id, DocumentName="AWS-StartSSHSession", Parameters={"portNumber": ["22"]}
        )


@pytest.fixture
def account(workspace):
    return Account(workspace)


def inventory(workspace, cluster):
    return json.loads(workspace.home.cluster(cluster).inventory.read_text())["nodes"]


def named(home, name):
    """Connect to a node by its name in the user's SSH configuration, with the real OpenSSH client."""
    argv = ["ssh", "-F", str(home / ".ssh/config"), name, "echo named"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout or done.stderr


def test_run_works_on_nodes_without_public_address_or_open_port(workspace, account, tmp_path):
    workspace.recipe()
    outcome = workspace.json("train", "plain", "--yes", "--keep", env=ALL_PRIVATE)
    assert outcome["state"] == "succeeded"
    assert outcome["outputs"]["files"] == ["outputs/metrics.json"]
    cluster = outcome["cluster"]
    assert account.open_ports() == []
    rows = [row for one in account.client("ec2").describe_instances()["Reservations"] for row in one["Instances"]]
    assert not any(row.get("PublicIpAddress") for row in rows)
    left = workspace.left()
    assert {kind: len(left[kind]) for kind in ("addresses", "nat_gateways", "vpcs")} == {
        "addresses": 1,
        "nat_gateways": 1,
        "vpcs": 1,
    }
    assert [(node["reach"], node["address"] == node["instance_id"]) for node in inventory(workspace, cluster)] == [
        ("ssm", True),
        ("ssm", True),
    ]
    # What is in the inventory holds for later commands, whatever the settings say by then.
    assert workspace.run("ssh", cluster, "--node", "1", "--", "echo", "inside").stdout == "inside\n"
    line = workspace.run("ssh", cluster, "--print").stdout
    assert "TokenValue" not in line
    assert workspace.run("exec", cluster, "--", "echo", "both").stdout == "nodes 0-1:\n  both\n"
    workspace.run("ssh-config", cluster, env={"HOME": str(tmp_path)})
    assert named(tmp_path, f"{cluster}-1") == "named\n"
    workspace.run("extend", cluster, "--by", "10m")
    assert account.open_ports() == []
    workspace.run("down", cluster)
    assert workspace.left() == {}


def test_ssm_session_requires_permission_and_a_network_path(workspace, account):
    workspace.recipe()
    workspace.run("up", "plain", "--yes", "--set", "resources.nodes=1", env=SSM)
    (node,) = inventory(workspace, "plain")
    stream = account.session(node["instance_id"])
    assert stream["StreamUrl"].startswith("ws://127.0.0.1:")
    iam, ec2 = account.client("iam"), account.client("ec2")
    role, policy = "cloudgpu-plain-us-east-1", "own-cluster"
    document = iam.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
    less = [one for one in document["Statement"] if "ssm:UpdateInstanceInformation" not in one["Action"]]
    iam.put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=json.dumps({**document, "Statement": less}))
    with pytest.raises(ClientError, match="TargetNotConnected"):
        account.session(node["instance_id"])
    refused = workspace.run("ssh", "plain", "--", "true", code=9)
    assert "is not connected" in refused.stderr
    assert "its role has the Session Manager permissions" in refused.stderr
    iam.put_role_policy(RoleName=role, PolicyName=policy, PolicyDocument=json.dumps(document))
    assert workspace.run("ssh", "plain", "--", "echo", "again").stdout == "again\n"
    # No way out for the agent: it cannot call in, though nothing else changed.
    (row,) = ec2.describe_instances(InstanceIds=[node["instance_id"]])["Reservations"][0]["Instances"]
    shut = ec2.create_security_group(GroupName="shut", Description="nothing gets out", VpcId=row["VpcId"])["GroupId"]
    everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.revoke_security_group_egress(GroupId=shut, IpPermissions=[everything])
    interface = row["NetworkInterfaces"][0]["NetworkInterfaceId"]
    ec2.modify_network_interface_attribute(NetworkInterfaceId=interface, Groups=[shut])
    with pytest.raises(ClientError, match="TargetNotConnected"):
        account.session(node["instance_id"])
    # Endpoints of the service in the VPC are a way out for the agent.
    for name in ("ssm", "ssmmessages"):
        service = f"com.amazonaws.us-east-1.{name}"
        with pytest.raises(ClientError, match="TargetNotConnected"):
            account.session(node["instance_id"])
        ec2.create_vpc_endpoint(
            VpcId=row["VpcId"], ServiceName=service, VpcEndpointType="Interface", SubnetIds=[row["SubnetId"]]
        )
    assert account.session(node["instance_id"])["SessionId"]
    workspace.run("down", "plain")


def test_missing_session_manager_plugin_is_reported_before_launch(workspace, tmp_path):
    workspace.recipe()
    missing = {"CLOUDGPU_SESSION_MANAGER_PLUGIN": str(tmp_path / "nowhere" / "session-manager-plugin")}
    refused = workspace.run("up", "plain", "--yes", env={**SSM, **missing}, code=2)
    assert "session-manager-plugin cannot be run; it is required to reach nodes" in refused.stderr
    assert workspace.left() == {}


def test_run_works_in_a_private_subnet_through_a_known_bastion(workspace, account, tmp_path):
    """The bastion is a node of another cluster: a real SSH server whose host key is not known beforehand."""
    workspace.recipe("gate", resources="{instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}")
    workspace.recipe()
    workspace.run("up", "gate", "--yes")
    (gate,) = inventory(workspace, "gate")
    subnet = next(
        one["SubnetId"]
        for one in account.client("ec2").describe_subnets()["Subnets"]
        if one["AvailabilityZone"] == "us-east-1c"
    )
    home = tmp_path / "ann"
    private = {
        "HOME": str(home),
        "CLOUDGPU_SUBNET_ID": subnet,
        "CLOUDGPU_PUBLIC_ADDRESS": "private",
        "CLOUDGPU_SSH_CIDR": "127.0.0.1/32",
        "CLOUDGPU_BASTION": f"{gate['user']}@{gate['address']}:{gate['port']}",
    }
    options = ("train", "plain", "--yes", "--keep", "--set", "resources.zones=us-east-1c")
    # A jump host that the user's own OpenSSH does not know is not gone through, and nothing is bought for it.
    refused = workspace.run(*options, code=9, env=private)
    assert f"the host key of the bastion {gate['address']}:{gate['port']} is not in {home}" in refused.stderr
    assert [one["cluster"] for one in workspace.json("status")["clusters"]] == ["gate"]
    known_hosts = workspace.home.cluster("gate").root / "known_hosts.0"
    workspace.run("ssh", "gate", "--print")
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "known_hosts").write_text(known_hosts.read_text())
    outcome = workspace.json(*options, env=private)
    assert outcome["state"] == "succeeded"
    cluster = outcome["cluster"]
    assert {node["bastion"] for node in inventory(workspace, cluster)} == {private["CLOUDGPU_BASTION"]}
    # Later commands go by what the inventory says; the address that is let in stays the jump host's.
    own = {"HOME": str(home)}
    assert workspace.run("ssh", cluster, "--node", "1", "--", "echo", "inside", env=own).stdout == "inside\n"
    assert "ProxyCommand" in workspace.run("ssh", cluster, "--print", env=own).stdout
    assert workspace.run("exec", cluster, "--", "echo", "both", env=own).stdout == "nodes 0-1:\n  both\n"
    workspace.run("ssh-config", cluster, env=own)
    assert named(home, f"{cluster}-1") == "named\n"
    # Without its jump host nobody gets in.
    workspace.run("down", "gate")
    assert workspace.run("ssh", cluster, "--", "true", code=9, env=own).stderr
    workspace.run("down", cluster)
    assert workspace.left() == {}
