"""Read prices, instance types and quotas from paginated AWS responses."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from botocore.stub import ANY

from cloudgpu.aws import prices_and_quotas
from cloudgpu.aws.ec2 import instances
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.errors import AuthError

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "regionCode": "us-east-1",
}
FILTERS = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in LINUX.items()]


def product(name, usd, unit="Hrs", currency="USD"):
    dimension = {"unit": unit, "pricePerUnit": {currency: usd}}
    return json.dumps(
        {
            "product": {"attributes": {"instanceType": name}},
            "terms": {"OnDemand": {"T": {"priceDimensions": {"D": dimension}}}},
        }
    )


def asked(**more):
    return {"ServiceCode": "AmazonEC2", "Filters": FILTERS, "MaxResults": 100, **more}


def test_price_list_is_read_to_last_page(scripted):
    stub = scripted.stub("pricing")
    first = [product("p5.48xlarge", "55.0400000000"), product("g5.xlarge", "1.0060000000")]
    stub.add_response("get_products", {"PriceList": first, "NextToken": "2"}, asked())
    rest = [
        product("p2.16xlarge", "30.0000000000"),
        product("free.xlarge", "0.0000000000"),
        product("upfront.xlarge", "9", unit="Quantity"),
        product("china.xlarge", "9", currency="CNY"),
        json.dumps({"product": {"attributes": {"instanceType": "termless.xlarge"}}}),
    ]
    stub.add_response("get_products", {"PriceList": rest}, asked(NextToken="2"))
    found = prices_and_quotas.on_demand(scripted)
    assert found == {"g5.xlarge": Decimal("1.006"), "p2.16xlarge": Decimal(30), "p5.48xlarge": Decimal("55.04")}
    assert [str(usd) for usd in found.values()] == ["1.006", "30", "55.04"]
    scripted.done()


def test_single_price_is_read_or_its_error_returned(scripted):
    stub = scripted.stub("pricing")
    filters = [*FILTERS, {"Type": "TERM_MATCH", "Field": "instanceType", "Value": "g7.2xlarge"}]
    stub.add_response("get_products", {"PriceList": [product("g7.2xlarge", "2.52")]}, asked(Filters=filters))
    pair = ("g7.2xlarge", "us-east-1")
    assert prices_and_quotas.on_demand_or_error(lambda _: scripted, [pair]) == {pair: Decimal("2.52")}
    stub.add_response("get_products", {"PriceList": []}, asked(Filters=filters))
    assert prices_and_quotas.on_demand_or_error(lambda _: scripted, [pair]) == {}, "the region does not sell the type"
    stub.add_client_error("get_products", "AccessDeniedException", "not authorized to perform pricing:GetProducts")
    (why,) = prices_and_quotas.on_demand_or_error(lambda _: scripted, [pair]).values()
    assert "reading the price list of us-east-1" in why
    scripted.done()


def test_pricing_client_uses_us_east_1():
    rehearsal = CloudEndpoint("http://127.0.0.1:9", "key", "secret")
    clients = connect(rehearsal, "sa-east-1")
    assert clients.client("pricing").meta.region_name == "us-east-1"
    assert clients.client("ec2").meta.region_name == "sa-east-1"


def test_spot_prices_span_last_day_in_all_zones(scripted):
    rows = [("p5.48xlarge", "20.1"), ("p5.48xlarge", "18.000000"), ("p5.48xlarge", "25.5"), ("g5.xlarge", "0.4")]
    told = [{"InstanceType": name, "SpotPrice": usd, "AvailabilityZone": "us-east-1a"} for name, usd in rows]
    asked_for = {
        "InstanceTypes": ["g5.xlarge", "p5.48xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": datetime(2026, 11, 20, 12, tzinfo=UTC),
    }
    stub = scripted.stub("ec2")
    stub.add_response("describe_spot_price_history", {"SpotPriceHistory": told[:2], "NextToken": "n"}, asked_for)
    stub.add_response(
        "describe_spot_price_history", {"SpotPriceHistory": told[2:], "NextToken": ""}, {**asked_for, "NextToken": "n"}
    )
    found = prices_and_quotas.spot(scripted, ["g5.xlarge", "p5.48xlarge"], NOW)
    assert found == {"g5.xlarge": (Decimal("0.4"),) * 2, "p5.48xlarge": (Decimal(18), Decimal("25.5"))}
    assert prices_and_quotas.spot(scripted, [], NOW) == {}, "no types would mean all types"
    scripted.done()


def test_denied_price_list_raises_auth_error(scripted):
    scripted.stub("pricing").add_client_error("get_products", "AccessDeniedException", http_status_code=400)
    with pytest.raises(AuthError, match="reading the price list of us-east-1"):
        prices_and_quotas.on_demand(scripted)


def described(name, *, maker="NVIDIA", part=1.0, count=4, arch="x86_64"):
    gpu = {"Name": "L4", "Manufacturer": maker, "Count": count, "GpuPartitionSize": part}
    return {
        "InstanceType": name,
        "CurrentGeneration": True,
        "GpuInfo": {"Gpus": [{**gpu, "MemoryInfo": {"SizeInMiB": 22888}}]},
        "VCpuInfo": {"DefaultVCpus": 48},
        "MemoryInfo": {"SizeInMiB": 196608},
        "ProcessorInfo": {"SupportedArchitectures": [arch]},
        "NetworkInfo": {
            "NetworkPerformance": "40 Gigabit",
            "MaximumNetworkCards": 1,
            "EfaInfo": {"MaximumEfaInterfaces": 1},
        },
        "InstanceStorageInfo": {"Disks": [{"Count": 4, "SizeInGB": 940, "Type": "ssd"}]},
        "SupportedUsageClasses": ["on-demand", "spot"],
    }


def test_only_types_with_whole_nvidia_gpus_are_described(scripted):
    rows = [
        described("g6.12xlarge"),
        described("g6f.large", part=0.125),
        described("g4ad.xlarge", maker="AMD"),
        described("g5g.xlarge", arch="arm64"),
        {"InstanceType": "p9.none", "VCpuInfo": {"DefaultVCpus": 1}},
    ]
    wanted = {"Filters": instances.GPU_FAMILIES, "MaxResults": 100}
    stub = scripted.stub("ec2")
    stub.add_response("describe_instance_types", {"InstanceTypes": rows[1:], "NextToken": "n"}, wanted)
    stub.add_response("describe_instance_types", {"InstanceTypes": rows[:1]}, {**wanted, "NextToken": "n"})
    (found,) = instances.describe_gpu_types(scripted).items()
    assert found[0] == "g6.12xlarge"
    facts = found[1]
    assert (facts.gpu, facts.gpus, facts.gpu_memory_gib, facts.vcpus, facts.memory_gib) == (
        "L4", 4, Decimal("22.4"), 48, 192,
    )  # fmt: skip
    assert (facts.efa_interfaces, facts.network, facts.nvme_disks, facts.nvme_gb) == (1, "40 Gigabit", 4, 940)
    scripted.done()


def test_zones_of_all_gpu_types_come_from_single_listing(scripted):
    rows = [{"InstanceType": "p5.48xlarge", "Location": f"us-east-1{letter}"} for letter in "fa"]
    asked_for = {"LocationType": "availability-zone", "Filters": instances.GPU_FAMILIES}
    scripted.stub("ec2").add_response("describe_instance_type_offerings", {"InstanceTypeOfferings": rows}, asked_for)
    assert instances.gpu_type_zones(scripted) == {"p5.48xlarge": ("us-east-1a", "us-east-1f")}


ON_DEMAND = [
    ("L-417A185B", "Running On-Demand P instances", 192.0),
    ("L-DB2E81BA", "Running On-Demand G and VT instances", 0.0),
    ("L-0263D0A3", "EC2-VPC Elastic IPs", 5.0),
]
SPOT = [
    ("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", 96.0),
    ("L-C4BD4855", "All P5 Spot Instance Requests", 0.0),
    ("L-3819A6DF", "All G and VT Spot Instance Requests", 8.0),
    ("L-99999999", "All P6 Spot Instance Requests", 384.0),
]


def listed(rows):
    return {"Quotas": [{"QuotaCode": code, "QuotaName": name, "Value": value} for code, name, value in rows]}


def test_quotas_are_paginated_and_p6_spot_is_found_by_name(scripted):
    stub = scripted.stub("service-quotas")
    stub.add_response("list_service_quotas", {**listed(ON_DEMAND), "NextToken": "n"}, {"ServiceCode": "ec2"})
    stub.add_response("list_service_quotas", listed(SPOT), {"ServiceCode": "ec2", "NextToken": "n"})
    found = prices_and_quotas.vcpu_limits(scripted)
    assert found["L-417A185B"] == 192
    assert found["L-DB2E81BA"] == 0
    assert found[quota_of("p6-b200.48xlarge", "spot").key] == 384
    assert "L-0263D0A3" not in found, "addresses are no vCPUs"
    scripted.done()


def test_unchanged_quota_falls_back_to_aws_default(scripted):
    stub = scripted.stub("service-quotas")
    stub.add_response("list_service_quotas", listed(ON_DEMAND), {"ServiceCode": "ec2"})
    defaults = [("L-417A185B", "Running On-Demand P instances", 0.0), *SPOT]
    stub.add_response("list_aws_default_service_quotas", listed(defaults), {"ServiceCode": "ec2"})
    found = prices_and_quotas.vcpu_limits(scripted)
    assert (found["L-417A185B"], found["L-7212CCBC"]) == (192, 96), "what was granted goes before the default"
    scripted.done()


def instance(kind, lifecycle=None, cores=None):
    row = {"InstanceType": kind}
    if lifecycle:
        row["InstanceLifecycle"] = lifecycle
    if cores:
        row["CpuOptions"] = {"CoreCount": cores, "ThreadsPerCore": 2}
    return row


def test_running_vcpus_are_counted_per_quota(scripted):
    stub = scripted.stub("ec2")
    pages = [
        [instance("p3dn.24xlarge", cores=48), instance("p4d.24xlarge", cores=48)],
        [
            instance("p3dn.24xlarge", "spot", cores=48),
            instance("p5.48xlarge", "capacity-block", cores=96),
            instance("g5.xlarge"),
            instance("m5.weird"),
        ],
    ]
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    first, last = ({"Reservations": [{"Instances": rows}]} for rows in pages)
    stub.add_response("describe_instances", {**first, "NextToken": "n"}, {"Filters": running})
    stub.add_response("describe_instances", last, {"Filters": running, "NextToken": ANY})
    found = prices_and_quotas.vcpus_in_use(scripted, {"g5.xlarge": 4}.get)
    assert found == {
        quota_of("p3dn", "on-demand"): 192,
        quota_of("p3dn", "spot"): 96,
        quota_of("g5", "on-demand"): 4,
        quota_of("m5", "on-demand"): None,
    }
    scripted.done()
