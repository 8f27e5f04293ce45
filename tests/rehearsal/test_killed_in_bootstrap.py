"""`up` that was killed while the nodes were booting: the next one waits for the bootstrap, and later ones do not."""

import json
import signal

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

OUT = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "127.0.0.1/32"}]}


class Network:
    """What lets a node's downloads through. `up` repairs the cluster's own group, so the node gets another one."""

    def __init__(self, workspace):
        cloud = workspace.cloud
        key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
        self.ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)
        self.closed = ""

    def close_before_launch(self):
        filters = [{"Name": "tag-key", "Values": ["cloudgpu:cluster"]}]
        (group,) = self.ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
        self.ec2.revoke_security_group_egress(GroupId=group["GroupId"], IpPermissions=[OUT])
        made = self.ec2.create_security_group(GroupName="closed", Description="x", VpcId=group["VpcId"])
        self.closed = made["GroupId"]
        self.ec2.revoke_security_group_egress(GroupId=self.closed, IpPermissions=[OUT])
        self.ec2.authorize_security_group_ingress(GroupId=self.closed, IpPermissions=[SSH])

    def keep_closed(self):
        (reservation,) = self.ec2.describe_instances()["Reservations"]
        interface = reservation["Instances"][0]["NetworkInterfaces"][0]["NetworkInterfaceId"]
        self.ec2.modify_network_interface_attribute(NetworkInterfaceId=interface, Groups=[self.closed])

    def open(self):
        self.ec2.authorize_security_group_egress(GroupId=self.closed, IpPermissions=[OUT])


def until_waiting(process):
    """Wait until the command shows that the bootstrap waits for the network. Return False if it ended before."""
    return any("waiting for internet access" in line for line in process.stdout)


def stages(workspace):
    up = workspace.json("up", "plain", "--yes")
    return up["made"], [stage["name"] for stage in up["stages"]]


def test_up_waits_for_the_bootstrap_that_a_killed_up_did_not_see_the_end_of(workspace):
    workspace.recipe(resources="{instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}")
    rules = [{"id": "launch", "action": "CreateFleet", "do": "hold"}]
    client.put_script(workspace.cloud, {"nodes": [{"do": "bare-image"}], "rules": rules})
    network, first = Network(workspace), workspace.popen("up", "plain", "--yes")
    workspace.until_held(first)
    network.close_before_launch()
    client.put_faults(workspace.cloud, [])
    assert until_waiting(first), "the first `up` did not wait"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    network.keep_closed()
    second = workspace.popen("up", "plain", "--yes")
    assert until_waiting(second), "the second `up` returned while the bootstrap was running"
    network.open()
    second.communicate(timeout=120)
    assert second.returncode == 0
    assert stages(workspace) == (False, ["provision"])
    workspace.run("down", "plain")
    network.ec2.delete_security_group(GroupId=network.closed)
    assert workspace.left() == {}


def test_cluster_of_an_up_that_did_not_wait_is_checked_once(workspace):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes", "--no-wait")
    assert [stage["name"] for stage in made["stages"]] == ["provision"]
    record = workspace.home.cluster("plain").record
    assert json.loads(record.read_text())["nodes_unchecked"] is True
    assert stages(workspace) == (False, ["provision", "connect", "gate"])
    assert "nodes_unchecked" not in json.loads(record.read_text())
    assert stages(workspace) == (False, ["provision"])
    workspace.run("down", "plain")


def test_cluster_that_a_run_has_used_is_not_checked_again(workspace):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes", "--keep")
    up = workspace.json("up", "plain", "--yes", "--name", run["cluster"])
    assert (up["made"], [stage["name"] for stage in up["stages"]]) == (False, ["provision"])
    workspace.run("down", run["cluster"])
