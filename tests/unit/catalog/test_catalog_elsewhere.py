"""The cluster program, the quotas and the rehearsal cloud agree with the catalog."""

import gzip
import json
from importlib.resources import files

import pytest

from cloudgpu.catalog import InstanceType, load
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.prices_and_quotas import QUOTAS
from gpu_cluster.interfaces import EFA_CARDS, interfaces, max_efa_interfaces

CATALOG = load()
LIVING = [kind for kind in CATALOG.rentable if not kind.retired]
RETIRED = [kind for kind in CATALOG.rentable if kind.retired]
DESCRIBED = json.loads(gzip.decompress(files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes()))
CODES = {(quota.bucket, quota.market): quota.code for quota in QUOTAS if quota.bucket}


def test_efa_interface_limit_matches_catalog():
    for kind in LIVING:
        assert max_efa_interfaces(kind.name) == max(kind.efa_interfaces, 1), kind.name
    assert EFA_CARDS.keys() <= CATALOG.types.keys()


@pytest.mark.parametrize("kind", [kind for kind in LIVING if kind.efa_interfaces], ids=lambda kind: kind.name)
def test_network_interface_layout_fits_ec2_network_cards(kind: InstanceType):
    cards = {card["NetworkCardIndex"]: card for card in DESCRIBED[kind.name]["NetworkInfo"]["NetworkCards"]}
    layout = interfaces(kind.name, kind.efa_interfaces)
    for one in layout:
        assert one.kind in cards[one.card]["InterfaceTypes"], one
    for index, card in cards.items():
        assert sum(one.card == index for one in layout) <= card["MaximumNetworkInterfaces"]
    assert sum(one.kind != "interface" for one in layout) == kind.efa_interfaces


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_rehearsal_quota_matches_catalog_quota(market: str):
    for kind in CATALOG.rentable:
        told = quota_of(kind.name, market).code
        if kind.name.startswith("p6") and market == "spot":
            assert not told, "public sources contradict each other"
            continue
        assert told == CODES[instance_types.market_quota_family(kind.name, market), market], kind.name


def test_rehearsal_retirements_and_zones_match_catalog():
    for kind in RETIRED:
        assert kind.name not in instance_types.zones_by_type("us-east-1")
        assert kind.name.startswith(instance_types.RETIRED)
    for region in ("us-east-1", "us-west-2", "eu-central-1"):
        offered = instance_types.zones_by_type(region)
        for kind in LIVING:
            assert kind.zones.get(region, ()) == offered.get(kind.name, ()), (kind.name, region)


def test_rehearsal_offers_no_types_of_other_providers():
    for kind in CATALOG.types.values():
        if kind.provider != "aws":
            assert all(kind.name not in instance_types.zones_by_type(region) for region in CATALOG.regions)
            assert instance_types.vcpus(kind.name) == 0
