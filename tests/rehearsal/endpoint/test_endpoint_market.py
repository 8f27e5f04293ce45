"""Prices, quotas, pagination, dry runs and the order of deletion, as on AWS."""

import json

import pytest
from botocore.exceptions import ClientError

from cloudgpu.catalog import catalog
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def code_of(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


def test_on_demand_prices_match_the_catalog(rig):
    pricing = rig.aws("pricing")
    filters = [
        {"Type": "TERM_MATCH", "Field": name, "Value": value}
        for name, value in (
            ("instanceType", "p3dn.24xlarge"), ("regionCode", "eu-west-1"), ("operatingSystem", "Linux"),
            ("tenancy", "Shared"), ("capacitystatus", "Used"), ("preInstalledSw", "NA"),
        )
    ]  # fmt: skip
    (row,) = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (term,) = json.loads(row)["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    assert (dimension["unit"], dimension["pricePerUnit"]) == ("Hrs", {"USD": "33.7110000000"})
    # A retired type has a price and cannot be launched, as on AWS.
    filters[0]["Value"], filters[1]["Value"] = "p3.16xlarge", "us-east-1"
    assert len(pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]) == 1
    pages = list(pricing.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", MaxResults=20))
    wanted = sum(len(kind.on_demand_usd) for kind in catalog.load().types.values())
    assert (len(pages) > 1, sum(len(page["PriceList"]) for page in pages)) == (True, wanted)
    assert code_of(pricing.get_products, ServiceCode="AmazonS3") == "NotFoundException"


def test_spot_prices_are_listed_per_zone(rig):
    rows = rig.ec2.describe_spot_price_history(InstanceTypes=["p3dn.24xlarge"], ProductDescriptions=["Linux/UNIX"])
    found = {row["AvailabilityZone"]: row["SpotPrice"] for row in rows["SpotPriceHistory"]}
    assert found == {"us-east-1c": "6.260000", "us-east-1d": "8.290000"}
    unknown = rig.ec2.describe_spot_price_history(InstanceTypes=["g4dn.metal"])
    assert unknown["SpotPriceHistory"] == []


def test_reported_quotas_are_enforced_on_launch(rig):
    quotas = rig.aws("service-quotas")

    def value(code: str) -> float:
        return quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"]

    assert value("L-0263D0A3") == 5
    client.put_quotas(rig.cloud, {"us-east-1/p/on-demand": 96, "us-east-1/p/spot": 0, "us-east-1/p5/spot": 192})
    assert [value(code) for code in ("L-417A185B", "L-7212CCBC", "L-C4BD4855")] == [96, 0, 192]
    shown = quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]
    assert {row["QuotaCode"]: row["Value"] for row in shown}["L-DB2E81BA"] > 0
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceMarketOptions": {"MarketType": "spot"}}
    assert code_of(rig.ec2.run_instances, InstanceType="p3dn.24xlarge", **run) == "MaxSpotInstanceCountExceeded"
    rig.ec2.run_instances(InstanceType="p5.48xlarge", **run)
    assert code_of(rig.ec2.run_instances, InstanceType="p5.48xlarge", **run) == "MaxSpotInstanceCountExceeded"
    assert code_of(quotas.get_service_quota, ServiceCode="ec2", QuotaCode="L-NONE") == "NoSuchResourceException"
    assert code_of(quotas.get_service_quota, ServiceCode="s3", QuotaCode="L-417A185B") == "NoSuchResourceException"


@pytest.mark.parametrize(
    ("listing", "member", "most"),
    [
        ("describe_subnets", "Subnets", 5),
        ("describe_security_groups", "SecurityGroups", 5),
        ("describe_network_interfaces", "NetworkInterfaces", 5),
        ("describe_volumes", "Volumes", 5),
        ("describe_tags", "Tags", 5),
        ("describe_instances", "Reservations", 5),
    ],
)
def test_listings_are_paginated_without_losing_rows(paged_rig, listing, member, most):
    whole = getattr(paged_rig.ec2, listing)()
    assert "NextToken" not in whole or not whole["NextToken"]
    pages = list(paged_rig.ec2.get_paginator(listing).paginate(PaginationConfig={"PageSize": most}))
    assert len(pages) > 1
    assert all(len(page[member]) <= most for page in pages)
    assert [row for page in pages for row in page[member]] == whole[member]


@pytest.fixture(scope="module")
def paged_rig(module_rig):
    for number in range(6):
        module_rig.ec2.create_security_group(GroupName=f"g{number}", Description="x")
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "n", "Value": str(number)}]}]
        module_rig.ec2.run_instances(
            MinCount=1, MaxCount=1, ImageId=module_rig.ami(), InstanceType="g5.xlarge", TagSpecifications=tags
        )
    return module_rig


def test_dry_run_changes_nothing(module_rig):
    ec2, before = module_rig.ec2, client.list_resources(module_rig.cloud)
    dry = [
        (ec2.create_vpc, {"CidrBlock": "10.0.0.0/16"}),
        (ec2.create_security_group, {"GroupName": "dry", "Description": "x"}),
        (ec2.create_launch_template, {"LaunchTemplateName": "dry", "LaunchTemplateData": {}}),
        (ec2.create_placement_group, {"GroupName": "dry", "Strategy": "cluster"}),
        (ec2.import_key_pair, {"KeyName": "dry", "PublicKeyMaterial": b"x"}),
        (ec2.create_tags, {"Resources": ["i-1"], "Tags": []}),
        (ec2.describe_instances, {}),
        (ec2.terminate_instances, {"InstanceIds": ["i-0123456789abcdef0"]}),
        (ec2.delete_fleets, {"FleetIds": ["fleet-1"], "TerminateInstances": True}),
    ]
    for call, arguments in dry:
        assert code_of(call, DryRun=True, **arguments) == "DryRunOperation"
    assert client.list_resources(module_rig.cloud) == before


def test_resources_in_use_cannot_be_deleted(rig):
    ec2 = rig.ec2
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge", "SubnetId": subnet}
    made = ec2.run_instances(**run)["Instances"][0]
    volume = ec2.describe_volumes()["Volumes"][0]["VolumeId"]
    gateway_of = {"InternetGatewayId": gateway, "VpcId": vpc}
    assert code_of(ec2.delete_subnet, SubnetId=subnet) == "DependencyViolation"
    assert code_of(ec2.detach_internet_gateway, **gateway_of) == "DependencyViolation"
    assert code_of(ec2.delete_internet_gateway, InternetGatewayId=gateway) == "DependencyViolation"
    assert code_of(ec2.delete_route_table, RouteTableId=table) == "DependencyViolation"
    assert code_of(ec2.delete_vpc, VpcId=vpc) == "DependencyViolation"
    assert code_of(ec2.delete_volume, VolumeId=volume) == "VolumeInUse"
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    rig.until(lambda: rig.states(made["InstanceId"]) == {"terminated"})
    ec2.delete_subnet(SubnetId=subnet)
    ec2.delete_route_table(RouteTableId=table)  # the association went with its subnet
    ec2.detach_internet_gateway(**gateway_of)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    ec2.delete_vpc(VpcId=vpc)
