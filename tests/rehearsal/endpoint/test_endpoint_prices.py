"""Calls that read the catalog: types, offerings and prices, their pages and regions, and custom prices."""

import json
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from cloudgpu.aws import prices_and_quotas
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.catalog import catalog
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

GPU_FAMILIES = [{"Name": "instance-type", "Values": ["p*", "g*"]}]


def code_of(work, *args, **kwargs) -> str:
    with pytest.raises(ClientError) as err:
        work(*args, **kwargs)
    return str(err.value.response["Error"]["Code"])


def priced(rig, name, region="us-east-1"):
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in (("instanceType", name), ("regionCode", region))
    ]
    (row,) = rig.aws("pricing").get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
    (term,) = json.loads(row)["terms"]["OnDemand"].values()
    (dimension,) = term["priceDimensions"].values()
    return Decimal(dimension["pricePerUnit"]["USD"])


def test_custom_prices_are_saved_and_apply_until_cleared(rig):
    shipped = catalog.load().types["p3dn.24xlarge"]
    client.put_prices(
        rig.cloud, {"*/*/on-demand": "9", "us-east-1/p3dn.24xlarge/on-demand": "29.5", "us-east-1/*/spot": "7.25"}
    )
    assert (priced(rig, "p3dn.24xlarge"), priced(rig, "p4d.24xlarge")) == (Decimal("29.5"), Decimal(9))
    rows = rig.ec2.describe_spot_price_history(InstanceTypes=["p3dn.24xlarge"])["SpotPriceHistory"]
    assert {row["SpotPrice"] for row in rows} == {"7.250000"}
    assert len(rows) == len(shipped.zones["us-east-1"])
    assert json.loads((rig.home.rehearsal / "market.json").read_text())["prices"]["*/*/on-demand"] == "9"
    client.put_prices(rig.cloud, {})
    assert priced(rig, "p3dn.24xlarge") == shipped.on_demand_usd["us-east-1"]


@pytest.mark.parametrize(
    "table", [{"a/b": "1"}, {"a/b/c": "0"}, {"a/b/c": "-1"}, {"a/b/c": "NaN"}, {"a/b/c": "x"}, {"a/b/c": 1}]
)
def test_invalid_price_is_rejected(rig, table):
    with pytest.raises(RehearsalError, match="is not a valid row"):
        client.put_prices(rig.cloud, table)


def test_price_list_is_served_only_in_pricing_regions(rig):
    for region in ("us-east-1", "eu-central-1", "ap-south-1"):
        assert rig.aws("pricing", region).get_products(ServiceCode="AmazonEC2", MaxResults=1)["PriceList"]
    assert code_of(rig.aws("pricing", "us-west-2").get_products, ServiceCode="AmazonEC2") == "UnknownEndpoint"
    pricing = rig.aws("pricing")
    assert code_of(pricing.get_products, ServiceCode="AmazonEC2", MaxResults=101) == "InvalidParameterException"
    assert code_of(pricing.get_products, ServiceCode="AmazonEC2", NextToken="x") == "InvalidNextTokenException"
    unlike = [{"Type": "CONTAINS", "Field": "instanceType", "Value": "p5"}]
    assert code_of(pricing.get_products, ServiceCode="AmazonEC2", Filters=unlike) == "InvalidParameterException"
    nobody = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "zz9.bogus"}]
    assert pricing.get_products(ServiceCode="AmazonEC2", Filters=nobody)["PriceList"] == []


def test_instance_types_are_listed_per_region_in_pages(rig):
    def names(region, size):
        pages = rig.aws("ec2", region).get_paginator("describe_instance_types")
        found = list(pages.paginate(Filters=GPU_FAMILIES, PaginationConfig={"PageSize": size}))
        assert all(len(page["InstanceTypes"]) <= size for page in found)
        return [row["InstanceType"] for page in found for row in page["InstanceTypes"]]

    here = names("us-east-1", 100)
    assert here == names("us-east-1", 20)
    assert "p3dn.24xlarge" in here
    assert not [name for name in here if name.startswith(("p3.", "p2.", "m5."))]
    assert "p3dn.24xlarge" not in names("sa-east-1", 100)
    elsewhere = rig.aws("ec2", "sa-east-1")
    assert code_of(elsewhere.describe_instance_types, InstanceTypes=["p3dn.24xlarge"]) == "InvalidInstanceType"
    assert code_of(rig.ec2.describe_instance_types, MaxResults=500) == "InvalidParameterValue"
    both = {"InstanceTypes": ["p3dn.24xlarge"], "MaxResults": 5}
    assert code_of(rig.ec2.describe_instance_types, **both) == "InvalidParameterCombination"
    assert len(rig.ec2.describe_instance_types()["InstanceTypes"]) == 100, "AWS pages what nobody asked in pages, too"


def test_offerings_are_filtered_by_patterns(rig):
    offered = rig.ec2.get_paginator("describe_instance_type_offerings")

    def rows(where, *filters):
        pages = offered.paginate(LocationType=where, Filters=list(filters))
        return [(row["InstanceType"], row["Location"]) for page in pages for row in page["InstanceTypeOfferings"]]

    p3 = {"Name": "instance-type", "Values": ["p3*"]}
    assert rows("availability-zone", p3) == [("p3dn.24xlarge", "us-east-1c"), ("p3dn.24xlarge", "us-east-1d")]
    last = {"Name": "location", "Values": ["*d"]}
    assert rows("availability-zone", p3, last) == [("p3dn.24xlarge", "us-east-1d")]
    assert rows("region", p3) == [("p3dn.24xlarge", "us-east-1")]
    strange = [{"Name": "colour", "Values": ["red"]}]
    assert code_of(rig.ec2.describe_instance_type_offerings, Filters=strange) == "InvalidParameterValue"


def test_running_instances_count_against_the_reported_vcpu_quota(rig):
    cloud = rig.cloud
    clients = connect(CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key), "us-east-1")
    client.put_quotas(cloud, {"us-east-1/p/on-demand": 192})
    on_demand = quota_of("p3dn.24xlarge", "on-demand")
    assert (prices_and_quotas.vcpu_limits(clients)[on_demand.code], prices_and_quotas.vcpus_in_use(clients)) == (
        192,
        {},
    )
    run = {"InstanceType": "p3dn.24xlarge", "MinCount": 1, "MaxCount": 1, "ImageId": rig.ami()}
    rig.ec2.run_instances(**run)
    rig.ec2.run_instances(**run, InstanceMarketOptions={"MarketType": "spot"})
    assert prices_and_quotas.vcpus_in_use(clients) == {on_demand: 96, quota_of("p3dn.24xlarge", "spot"): 96}
    # What is counted as free here is what the launch finds free.
    rig.ec2.run_instances(**run)
    assert prices_and_quotas.vcpus_in_use(clients)[on_demand] == 192
    assert code_of(rig.ec2.run_instances, **run) == "VcpuLimitExceeded"
