"""Instance types with different network cards: the interfaces that EC2 reports for a node of each."""

import boto3
import pytest

from cloudgpu.catalog import load

pytestmark = pytest.mark.rehearsal


def several(cards):
    """Return the layout of nodes with several cards: TCP on the first one, and EFA alone on every card."""
    return [(0, 0, "interface"), (0, 1, "efa-only"), *((card, 0, "efa-only") for card in range(1, cards))]


LAYOUTS = {
    "g6.12xlarge": [(0, 0, "efa")],
    "g6e.48xlarge": several(4),
    "p4de.24xlarge": several(4),
    "p5.48xlarge": several(32),
    "p5en.48xlarge": several(16),
    "p6-b200.48xlarge": several(8),
}


@pytest.fixture
def ec2(workspace):
    cloud = workspace.cloud
    keys = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **keys)


def test_nodes_have_the_interface_layout_of_their_instance_type(workspace, ec2):
    for name, layout in LAYOUTS.items():
        workspace.recipe(resources=f"{{instance_type: {name}, nodes: 1, network: efa, regions: [us-east-1]}}")
        workspace.run("up", "plain", "--name", name.replace(".", "-"), "--yes")
        assert load().types[name].efa_interfaces == sum("efa" in kind for _, _, kind in layout)
    nodes = {node["InstanceType"]: node for node in running(ec2)}
    assert {name: interfaces(node) for name, node in nodes.items()} == LAYOUTS
    elastic = {row["InstanceId"]: row["PublicIp"] for row in ec2.describe_addresses()["Addresses"]}
    several = [nodes[name] for name, layout in LAYOUTS.items() if len(layout) > 1]
    assert {node["InstanceId"]: node["PublicIpAddress"] for node in several} == elastic
    workspace.run("down", "--all", "--yes")
    assert workspace.left() == {}


def running(ec2):
    rows = [row for group in ec2.describe_instances()["Reservations"] for row in group["Instances"]]
    return [row for row in rows if row["State"]["Name"] == "running"]


def interfaces(node):
    return sorted(
        (one["Attachment"]["NetworkCardIndex"], one["Attachment"]["DeviceIndex"], one["InterfaceType"])
        for one in node["NetworkInterfaces"]
    )
