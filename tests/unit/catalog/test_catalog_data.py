"""The catalog data files are consistent and match the EC2 data bundled with moto."""

import gzip
import json
from datetime import date
from decimal import Decimal
from importlib.resources import files

import pytest

from cloudgpu.catalog import load
from cloudgpu.catalog.hardware import NVSWITCH_GPUS
from cloudgpu.catalog.unsupported import doubtful_type, every_entry, unsupported_type
from cloudgpu.errors import RecipeError

CATALOG = load()
TYPES = list(CATALOG.types.values())
RENTED = list(CATALOG.rentable)
MOTO = files("moto.ec2").joinpath("resources")


def test_catalog_entries_are_consistent():
    for kind in TYPES:
        assert min(kind.gpus, kind.vcpus, kind.memory_gib) > 0, kind.name
        assert kind.gpu_memory_gib in {size.gib for size in CATALOG.gpus[kind.gpu].memories}, kind.name
        assert kind.efa_interfaces <= kind.network_cards, kind.name
        assert all(usd > 0 for usd in kind.on_demand_usd.values()), kind.name
        assert set(kind.on_demand_usd) | set(kind.spot_usd) | set(kind.zones) <= set(CATALOG.regions), kind.name
        assert all(zone[:-1] == region for region, zones in kind.zones.items() for zone in zones), kind.name
        for region, (low, high) in kind.spot_usd.items():
            assert 0 < low <= high <= kind.on_demand_usd.get(region, high), kind.name
        assert date(2020, 1, 1) < kind.priced_on <= date.fromisoformat("2026-11-21"), kind.name
        assert kind.source, kind.name


def test_retired_type_has_date_and_available_replacement():
    for kind in RENTED:
        assert kind.retired == (kind.retired_on is not None) == (kind.replacement is not None) == (not kind.zones)
        if kind.replacement is not None:
            assert not CATALOG.types[kind.replacement].retired, kind.name
    assert sum(kind.retired for kind in RENTED) >= 10


def test_every_rentable_type_except_p5e_has_on_demand_price():
    assert {kind.name for kind in RENTED if "us-east-1" not in kind.on_demand_usd} == {"p5e.48xlarge"}


def test_regions_that_sell_a_type_have_a_price():
    """Prices that no public source lists are read from the price list when a plan needs them."""
    offered = [(kind, region) for kind in RENTED for region in kind.zones]
    unpriced = {(kind.name, region) for kind, region in offered if region not in kind.on_demand_usd}
    assert {name.partition(".")[0] for name, _ in unpriced} <= {
        "g5",
        "g6e",
        "g7",
        "g7e",
        "p5",
        "p5e",
        "p6-b200",
        "p6-b300",
    }
    assert len(unpriced) <= len(offered) / 5
    assert not {name for name, region in unpriced if region in ("us-east-2", "us-west-2")} - {
        name for name in CATALOG.types if name.startswith(("g7.", "g7e.", "p5e."))
    }


def test_regional_price_has_its_own_date_and_source():
    kind = CATALOG.types["g5.xlarge"]
    assert kind.on_demand_usd["eu-central-1"] == Decimal("1.258")
    assert kind.price_read_on("us-east-1") == kind.priced_on
    assert kind.price_read_on("eu-central-1") == date(2026, 1, 21)
    assert "read on 2026-01-21" in kind.source
    assert "eu-central-1" not in CATALOG.types["p4d.24xlarge"].rates_read_on, "a newer source has this price"


def test_hardware_matches_ec2_description():
    described = json.loads(gzip.decompress(MOTO.joinpath("instance_types.json.gz").read_bytes()))
    for kind in RENTED:
        if kind.retired:
            assert kind.name not in described
            continue
        entry = described[kind.name]
        gpu, network = entry["GpuInfo"]["Gpus"][0], entry["NetworkInfo"]
        assert (kind.gpu, kind.gpus) == (gpu["Name"], gpu["Count"])
        assert kind.gpu_memory_gib == (Decimal(gpu["MemoryInfo"]["SizeInMiB"]) / 1024).quantize(Decimal("0.01"))
        assert kind.vcpus == entry["VCpuInfo"]["DefaultVCpus"]
        assert kind.memory_gib * 1024 == entry["MemoryInfo"]["SizeInMiB"]
        assert kind.efa_interfaces == network.get("EfaInfo", {"MaximumEfaInterfaces": 0})["MaximumEfaInterfaces"]
        assert kind.network_cards == network["MaximumNetworkCards"]
        assert set(kind.usage_classes) == set(entry["SupportedUsageClasses"])
        assert kind.nvme_disks * kind.nvme_gb == entry.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)
        assert (kind.lifecycle == "active") == entry["CurrentGeneration"]


def test_every_supported_nvidia_type_of_ec2_is_in_catalog():
    described = json.loads(gzip.decompress(MOTO.joinpath("instance_types.json.gz").read_bytes()))
    nvidia = {
        name
        for name, entry in described.items()
        if any(gpu["Manufacturer"] == "NVIDIA" for gpu in entry.get("GpuInfo", {}).get("Gpus", []))
    }
    missing = nvidia - CATALOG.types.keys()
    assert missing == {name for name in nvidia if unsupported_type(name)}


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("g6f.large", "g6.xlarge"),
        ("gr6f.4xlarge", "gr6.4xlarge"),
        ("g5g.metal", "g4dn.xlarge"),
        ("g4ad.xlarge", "g4dn.xlarge"),
        ("p6e-gb200.36xlarge", "p6-b200.48xlarge"),
        ("p6e-gb300.36xlarge", "p6-b300.48xlarge"),
        ("trn1.32xlarge", "g6.xlarge"),
        ("g6.xlarge", None),
        ("p3.2xlarge", None),
        ("info", None),
    ],
)
def test_unsupported_type_is_explained_with_nearest_type(name, replacement):
    found = unsupported_type(name)
    assert (None if found is None else found.replacement) == replacement


def test_replacement_of_unsupported_hardware_is_open_to_new_accounts():
    assert [entry.name for entry in every_entry() if doubtful_type(entry.replacement)] == []


def test_every_gpu_with_nvswitch_has_a_type():
    assert {kind.gpu for kind in RENTED} >= NVSWITCH_GPUS


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-west-1", "eu-central-1"])
def test_zones_match_ec2_offerings(region: str):
    path = MOTO.joinpath(f"instance_type_offerings/availability-zone/{region}.json.gz")
    offered = json.loads(gzip.decompress(path.read_bytes()))
    for kind in RENTED:
        zones = sorted(entry["Location"] for entry in offered if entry["InstanceType"] == kind.name)
        assert list(kind.zones.get(region, ())) == zones


def test_p3dn_facts_are_correct():
    kind = CATALOG.instance_type("p3dn.24xlarge")
    assert (kind.gpu, kind.gpus, kind.gpu_memory_gib, kind.efa_interfaces) == ("V100", 8, Decimal(32), 1)
    assert kind.zones["us-east-1"] == ("us-east-1c", "us-east-1d")
    assert kind.on_demand_usd["us-east-1"] == Decimal("31.212")
    assert set(kind.zones) == {"us-east-1", "us-west-2", "eu-west-1", "ap-northeast-1"}


def test_machine_image_matches_gpu_compute_capability():
    for gpu in CATALOG.gpus.values():
        assert ("canonical/ubuntu" in gpu.image) == (gpu.sm < 75), gpu.name
        assert ("deeplearning" in gpu.image) == (gpu.sm >= 75), gpu.name


def test_machines_of_other_providers_are_never_matched_by_gpu():
    others = {kind.name for kind in TYPES if kind.provider != "aws"}
    assert {"ecs.gn6v-c8g1.16xlarge", "ecs.sccgn6.24xlarge", "dgx-1-32gb", "dgx-2", "dgx-h100"} <= others
    for gpu in CATALOG.gpus:
        for count in range(1, 17):
            assert not others & {kind.name for kind in CATALOG.types_for(gpu, count)}
    for name in others:
        kind = CATALOG.types[name]
        assert not {*kind.zones, *kind.on_demand_usd, *kind.spot_usd}
        assert kind.source == "no prices are known: these machines are given as an inventory"


def test_matching_types_are_sorted_by_lifecycle_and_price():
    assert [kind.name for kind in CATALOG.types_for("V100", 8)] == ["p3dn.24xlarge", "p3.16xlarge"]
    assert [kind.name for kind in CATALOG.types_for("T4", 1)][:2] == ["g4dn.xlarge", "g4dn.2xlarge"]
    assert CATALOG.types_for("T4", 3) == ()


def test_unknown_name_error_suggests_nearest():
    with pytest.raises(RecipeError, match=r'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"'):
        CATALOG.instance_type("p3dn.24xlage")
    with pytest.raises(RecipeError, match='unknown GPU v100; did you mean "V100"'):
        CATALOG.gpu("v100")
