"""The data files against themselves and against what EC2 said, as moto carries it."""

import gzip
import json
from datetime import date
from decimal import Decimal
from importlib.resources import files

import pytest

from cloudgpu.catalog import InstanceType, load
from cloudgpu.errors import RecipeError

CATALOG = load()
TYPES = list(CATALOG.types.values())
STORED = json.loads(files("cloudgpu.catalog").joinpath("data/instance_types.json").read_text("utf-8"))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_an_entry_makes_sense(kind: InstanceType):
    assert kind.gpu in CATALOG.gpus
    assert kind.gpus > 0
    assert kind.gpu_memory_gib > 0
    assert kind.efa_interfaces <= kind.network_cards
    assert all(usd > 0 for usd in kind.on_demand_usd.values())
    assert "us-east-1" in kind.on_demand_usd
    assert set(kind.on_demand_usd) | set(kind.spot_usd) | set(kind.zones) <= set(CATALOG.regions)
    assert all(zone[:-1] == region for region, zones in kind.zones.items() for zone in zones)
    for region, (low, high) in kind.spot_usd.items():
        assert 0 < low <= high <= kind.on_demand_usd[region]
    assert date(2020, 1, 1) < kind.priced_on <= date.fromisoformat("2026-11-21")
    assert kind.source


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_retired_type_says_when_and_what_to_use_instead(kind: InstanceType):
    assert kind.retired == (kind.retired_on is not None) == (kind.replacement is not None) == (not kind.zones)
    if kind.replacement is not None:
        assert not CATALOG.types[kind.replacement].retired


def test_every_kind_of_figure_has_its_source():
    for stored, entries in ((STORED, STORED["instance_types"]), (_gpus(), _gpus()["gpus"])):
        assert all(stored["sources"].values())
        assert {"on_demand_usd", "spot_usd", "zones"} <= set(STORED["sources"])
        assert entries


def test_hardware_and_zones_are_what_ec2_describes():
    resources = files("moto.ec2").joinpath("resources")
    described = json.loads(gzip.decompress(resources.joinpath("instance_types.json.gz").read_bytes()))
    for kind in TYPES:
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


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "eu-west-1", "eu-central-1"])
def test_zones_are_those_that_offer_the_type(region: str):
    path = files("moto.ec2").joinpath(f"resources/instance_type_offerings/availability-zone/{region}.json.gz")
    offered = json.loads(gzip.decompress(path.read_bytes()))
    for kind in TYPES:
        zones = sorted(entry["Location"] for entry in offered if entry["InstanceType"] == kind.name)
        assert list(kind.zones.get(region, ())) == zones


def test_what_is_known_of_p3dn():
    kind = CATALOG.instance_type("p3dn.24xlarge")
    assert (kind.gpu, kind.gpus, kind.gpu_memory_gib, kind.efa_interfaces) == ("V100", 8, Decimal(32), 1)
    assert kind.zones["us-east-1"] == ("us-east-1c", "us-east-1d")
    assert kind.on_demand_usd["us-east-1"] == Decimal("31.212")
    assert set(kind.zones) == {"us-east-1", "us-west-2", "eu-west-1", "ap-northeast-1"}


def test_v100_gets_an_image_without_a_driver_and_the_others_one_with():
    assert "canonical/ubuntu" in CATALOG.gpu("V100").image
    assert all("deeplearning" in gpu.image for gpu in CATALOG.gpus.values() if gpu.name != "V100")


def test_types_with_a_gpu_come_working_first_and_cheapest_first():
    assert [kind.name for kind in CATALOG.types_for("V100", 8)] == ["p3dn.24xlarge", "p3.16xlarge"]
    assert [kind.name for kind in CATALOG.types_for("T4", 1)][:2] == ["g4dn.xlarge", "g4dn.2xlarge"]
    assert CATALOG.types_for("T4", 3) == ()


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(RecipeError, match=r'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"'):
        CATALOG.instance_type("p3dn.24xlage")
    with pytest.raises(RecipeError, match='unknown GPU v100; did you mean "V100"'):
        CATALOG.gpu("v100")


def _gpus():
    return json.loads(files("cloudgpu.catalog").joinpath("data/gpus.json").read_text("utf-8"))
