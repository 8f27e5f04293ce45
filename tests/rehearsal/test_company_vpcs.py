"""Accounts without a default VPC, with private and public subnets, or with zones that have no subnet."""

import boto3
import pytest

pytestmark = pytest.mark.rehearsal

ONE = "{instance_type: g4dn.xlarge, nodes: 1, regions: [us-east-1], zones: [us-east-1c, us-east-1d]}"
ANYWHERE = "0.0.0.0/0"


@pytest.fixture
def ec2(workspace):
    cloud = workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)


def make_vpc(ec2):
    """Create a VPC whose public subnet in us-east-1c has the higher ID, and return both subnets."""
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock=ANYWHERE, GatewayId=gateway)
    place = {"VpcId": vpc, "AvailabilityZone": "us-east-1c"}
    private, public = sorted(
        ec2.create_subnet(CidrBlock=f"10.9.{number}.0/24", **place)["Subnet"]["SubnetId"] for number in range(2)
    )
    ec2.associate_route_table(RouteTableId=table, SubnetId=public)
    return vpc, private, public


def test_nodes_run_in_the_public_subnet_that_the_plan_shows(workspace, ec2):
    workspace.recipe(resources=ONE)
    vpc, _, public = make_vpc(ec2)
    own = {"CLOUDGPU_VPC_ID": vpc}
    plan = workspace.json("plan", "plain", env=own)
    assert [(row["zone"], row["subnet"]) for row in plan["candidates"]] == [("us-east-1c", public)]
    assert (
        f"us-east-1d is excluded: {vpc} has no subnet in us-east-1d" in workspace.run("plan", "plain", env=own).stdout
    )
    workspace.run("up", "plain", "--yes", env=own)
    (row,) = [item for found in ec2.describe_instances()["Reservations"] for item in found["Instances"]]
    assert row["SubnetId"] == public
    assert workspace.run("exec", "plain", "--", "echo", "reached", env=own).stdout.endswith("reached\n")
    workspace.run("down", "plain", env=own)
    refused = workspace.run("plan", "plain", "--set", "resources.zones=us-east-1d", env=own, code=7)
    assert f"{vpc} has no subnet in us-east-1d [subnet]" in " ".join(refused.stdout.split())


def test_zone_without_default_subnet_is_skipped_and_a_region_without_default_vpc_is_an_error(workspace, ec2):
    workspace.recipe(resources=ONE)
    vpc = next(row["VpcId"] for row in ec2.describe_vpcs()["Vpcs"] if row["IsDefault"])
    subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["Subnets"]
    first = next(row["SubnetId"] for row in subnets if row["AvailabilityZone"] == "us-east-1c")
    ec2.delete_subnet(SubnetId=first)
    workspace.run("up", "plain", "--yes")
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["zone"] == "us-east-1d"
    workspace.run("down", "plain")
    report = workspace.json("doctor", "--on", "rehearsal")
    details = [row["detail"] for row in report["checks"] if row["name"] == "subnets"]
    assert "no default subnet in us-east-1c" in details
    for subnet in subnets:
        if subnet["SubnetId"] != first:
            ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    ec2.delete_vpc(VpcId=vpc)
    refused = workspace.run("plan", "plain", code=7)
    assert "us-east-1 has no default VPC [subnet]" in refused.stdout
    assert "aws ec2 create-default-vpc --region us-east-1" in " ".join(refused.stdout.split())


def test_new_file_systems_are_in_the_subnets_of_the_nodes_and_stay_there(workspace, ec2):
    vpc, private, public = make_vpc(ec2)
    own = {"CLOUDGPU_VPC_ID": vpc}
    options = ("--on", "rehearsal", "--yes")
    files = workspace.json("storage", "create", "files", "--kind", "efs", *options, env=own)
    lustre = ("--kind", "lustre", "--size", "1200", "--zone", "us-east-1c")
    fast = workspace.json("storage", "create", "fast", *lustre, *options, env=own)
    rows = ec2.describe_network_interfaces(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["NetworkInterfaces"]
    assert {row["SubnetId"] for row in rows} == {public} != {private}
    assert [files["subnets"], fast["subnets"]] == [[public], [public]]
    workspace.recipe(resources=ONE)
    ec2.delete_subnet(SubnetId=private)
    again = workspace.json("storage", "create", "files", "--kind", "efs", *options, env=own)
    assert (again["made"], again["subnets"]) == (False, [public])
    elsewhere = ("--kind", "lustre", "--size", "1200", "--zone", "us-east-1d")
    refused = workspace.json("storage", "create", "other", *elsewhere, *options, env=own, code=7)
    assert f"{vpc} has no subnet in us-east-1d" in str(refused)
    # The names of EFS do not resolve in this VPC, whose DNS hostnames are off, as in every new VPC.
    recipe = workspace.recipe(resources=ONE, storage="[{name: files, to: /files}]")
    run = workspace.json("train", str(recipe), *options, env=own)
    assert run["state"] == "succeeded", run["tail"]
    # Without the setting, the nodes would be in the default VPC, which the file system's group does not belong to.
    plan = workspace.json("plan", str(recipe), code=7)
    (finding,) = [row for row in plan["findings"] if row["check"] == "storage"]
    assert finding["message"].startswith(f"storage files is in {vpc}, but the nodes would be in the default VPC")
