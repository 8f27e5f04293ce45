"""What fits, in which order, at which price; and what could stand in for what."""

from dataclasses import fields, replace
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.catalog import Catalog, load
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.catalog.ranking import Offer, SearchCriteria, Sort, memory_of, offer_of, rank_offers
from cloudgpu.catalog.replacements import replacements

SORTS = get_args(Sort)


def names(catalog: Catalog, sort: Sort = "usd-per-hour", **wanted) -> list[str]:
    return [
        one.kind.name for one in rank_offers(catalog, SearchCriteria(**wanted), sort, home_region="us-east-1").offers
    ]


def test_the_cheapest_comes_first_and_what_has_no_price_last(catalog):
    assert names(catalog) == [
        "g4.xlarge",
        "g4.metal",
        "g5.48xlarge",
        "p4d.24xlarge",
        "p4de.24xlarge",
        "p3dn.24xlarge",
        "p6.48xlarge",
        "p5e.48xlarge",
    ]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("usd-per-hour", ["g4.xlarge", "g4.metal"]),
        ("memory", ["p6.48xlarge", "p5e.48xlarge"]),
        ("bandwidth", ["p6.48xlarge", "p5e.48xlarge"]),
        ("fp16", ["p5e.48xlarge", "p4d.24xlarge"]),
        ("usd-per-pflop-h", ["g4.xlarge", "p4d.24xlarge"]),
        ("usd-per-tb-s", ["g4.xlarge", "p4de.24xlarge"]),
    ],
)
def test_each_order(catalog, sort, first):
    assert names(catalog, sort)[:2] == first


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"min_memory_gib": Decimal(32), "count": 8}, {"p3dn", "p4d", "p4de", "p5e", "p6"}),
        ({"min_total_memory_gib": Decimal(640)}, {"p4de", "p5e", "p6"}),
        ({"architecture": "Volta"}, {"p3dn"}),
        ({"count": 1}, {"g4"}),
        ({"region": "us-west-2"}, {"p3dn", "p6"}),
        ({"market": "spot"}, {"g4", "p3dn", "p4d", "g5", "p5e", "p6"}),
        ({"architecture": "Volta", "everything": True}, {"p3dn", "p3", "dgx-1"}),
        ({"count": 3}, set()),
    ],
)
def test_each_spec(catalog, wanted, found):
    assert {name.partition(".")[0] for name in names(catalog, **wanted)} == found


def test_what_nobody_can_launch_comes_last_however_cheap(catalog):
    assert names(catalog, everything=True)[-3:] == ["p2.8xlarge", "p3.16xlarge", "dgx-1"]


def test_what_misses_by_little_is_told(catalog):
    def nearly(gib: str) -> list[str]:
        wanted = SearchCriteria(min_memory_gib=Decimal(gib), count=8)
        return [one.kind.name for one in rank_offers(catalog, wanted, "usd-per-hour", home_region="").nearly]

    assert nearly("24") == ["g5.48xlarge"]
    assert nearly("22.35") == []
    assert nearly("25") == []


def test_figures_are_of_the_whole_instance(catalog):
    offer = offer_of(catalog, catalog.types["p3dn.24xlarge"], "on-demand", "", "us-east-1")
    assert (offer.hourly_usd, offer.region) == (Decimal("31.212"), "us-east-1")
    assert offer.bandwidth_tb_s == Decimal("7.2")
    assert offer.fp16_pflop_s == 1
    assert offer.usd_per_pflop_h == Decimal("31.212")
    assert offer.usd_per_tb_s == Decimal("4.335")
    assert offer.usd_per_gpu_h == Decimal("3.9015")


def test_of_equal_prices_the_home_region_is_meant(catalog):
    kind = catalog.types["p3dn.24xlarge"]
    assert offer_of(catalog, kind, "on-demand", "", "us-west-2").region == "us-west-2"
    assert offer_of(catalog, kind, "on-demand", "", "eu-west-1").region == "us-east-1"
    assert offer_of(catalog, kind, "on-demand", "eu-west-1", "us-east-1").hourly_usd == Decimal("33.711")


def test_a_millionth_of_a_dollar_makes_no_region_cheaper(catalog):
    prices = {"us-east-2": Decimal("21.957640"), "us-east-1": Decimal("21.957642"), "us-west-2": Decimal("21.94")}
    zones = {region: (f"{region}a",) for region in prices}
    kind = replace(catalog.types["p4d.24xlarge"], on_demand_usd=prices, zones=zones)
    assert offer_of(catalog, kind, "on-demand", "", "us-east-1").region == "us-west-2"
    kind = replace(kind, on_demand_usd={**prices, "us-west-2": Decimal(30)})
    assert offer_of(catalog, kind, "on-demand", "", "us-east-1").region == "us-east-1"
    assert offer_of(catalog, kind, "on-demand", "", "us-west-2").region == "us-east-2"


def test_a_spot_price_is_the_highest_seen_with_the_lowest_beside_it(catalog):
    offer = offer_of(catalog, catalog.types["p3dn.24xlarge"], "spot", "", "us-east-1")
    assert (offer.lowest_usd, offer.hourly_usd) == (Decimal("6.26"), Decimal("8.29"))


def test_what_is_unknown_stays_unknown(catalog):
    blocks = offer_of(catalog, catalog.types["p5e.48xlarge"], "on-demand", "", "us-east-1")
    assert (blocks.region, blocks.hourly_usd, blocks.priced_on) == ("us-east-2", None, None)
    assert blocks.usd_per_pflop_h is blocks.usd_per_tb_s is blocks.usd_per_gpu_h is None
    newest = offer_of(catalog, catalog.types["p6.48xlarge"], "on-demand", "", "us-east-1")
    assert newest.fp16_pflop_s is newest.usd_per_pflop_h is None
    bare = replace(catalog.gpus["V100"], memories=())
    assert memory_of(bare, catalog.types["p3dn.24xlarge"]) is None


def test_the_memory_of_a_type_is_the_nearest_size(catalog):
    for name, gib in (("p4d.24xlarge", 40), ("p4de.24xlarge", 80), ("p3dn.24xlarge", 32)):
        kind = catalog.types[name]
        assert memory_of(catalog.gpus[kind.gpu], kind).gib == gib


def test_a_zone_outside_the_region_itself_is_no_offer_of_the_region(catalog):
    local = replace(
        catalog.types["g4.xlarge"], zones={"us-east-1": ("us-east-1-bos-1a",), "eu-west-1": ("eu-west-1a",)}
    )
    one = replace(catalog, types={local.name: local})
    assert names(one, region="us-east-1") == []
    assert offer_of(one, local, "on-demand", "", "us-east-1").region == "eu-west-1"


def test_stand_ins_are_compared_by_the_price_of_one_gpu(catalog):
    """A machine of four at 2 USD is the cheaper stand-in than one of a single GPU at 1 USD."""
    single, several = catalog.types["g4.xlarge"], catalog.types["g4.metal"]
    several = replace(several, gpus=4, on_demand_usd={"us-east-1": Decimal(2)})
    single = replace(single, on_demand_usd={"us-east-1": Decimal(1)})
    one = replace(catalog, types={**catalog.types, single.name: single, several.name: several})
    small, _ = replacements(one, one.gpus["V100"], home_region="us-east-1")
    assert small.cheapest.kind.name == "g4.metal"


def test_the_newer_one_is_the_one_with_the_least_memory_that_is_enough(catalog):
    """Not the cheapest: a dearer one that is nearer in memory goes before it."""
    dear = replace(catalog.types["p4d.24xlarge"], on_demand_usd={"us-east-1": Decimal(90)})
    one = replace(catalog, types={**catalog.types, dear.name: dear})
    _, large = replacements(one, one.gpus["V100"], home_region="us-east-1")
    assert large.cheapest.kind.name == "p4de.24xlarge"
    assert large.newer.kind.name == "p4d.24xlarge"


def test_a_spec_means_the_type_it_was_made_of():
    catalog = load()
    for kind in catalog.rentable:
        offer = offer_of(catalog, kind, "on-demand", "", "us-east-1")
        if not kind.retired:
            assert kind in types_for_spec(offer.spec, catalog)


def test_what_could_replace_a_gpu(catalog):
    small, large = replacements(catalog, catalog.gpus["V100"], home_region="us-east-1")
    assert (small.gib, large.gib) == (16, 32)
    assert small.cheapest.kind.name == "g4.xlarge"
    assert small.newer.kind.name == "g4.xlarge"
    assert large.cheapest.kind.name == "p4d.24xlarge"
    assert large.newer.kind.name == "p4d.24xlarge"
    (newest,) = replacements(catalog, catalog.gpus["B200"], home_region="us-east-1")
    assert (newest.cheapest, newest.newer) == (None, None)


def test_the_cheapest_may_be_older_and_the_newer_one_dearer(catalog):
    cheap = replace(catalog.types["p3dn.24xlarge"], on_demand_usd={"us-east-1": Decimal(1)})
    one = replace(catalog, types={**catalog.types, cheap.name: cheap})
    (found,) = replacements(one, one.gpus["A10G"], home_region="us-east-1")
    assert (found.cheapest.gpu.name, found.newer.gpu.name) == ("V100", "B200")


specs = st.builds(
    SearchCriteria,
    min_memory_gib=st.integers(0, 200).map(Decimal),
    min_total_memory_gib=st.integers(0, 1600).map(Decimal),
    architecture=st.sampled_from(["", *sorted({gpu.architecture for gpu in load().gpus.values()})]),
    count=st.sampled_from([None, 1, 2, 4, 8]),
    region=st.sampled_from(["", "us-east-1", "eu-west-1", "ap-south-1"]),
    market=st.sampled_from(["on-demand", "spot"]),
    everything=st.booleans(),
)


def test_every_field_of_a_spec_is_drawn():
    assert len(fields(SearchCriteria)) == 7


@given(wanted=specs, sort=st.sampled_from(SORTS))
def test_every_offer_of_the_catalogue_fits_and_every_other_type_does_not(wanted: SearchCriteria, sort: Sort):
    catalog = load()
    found = rank_offers(catalog, wanted, sort, home_region="us-east-1")
    for one in found.offers:
        assert one.kind.gpu_memory_gib >= wanted.min_memory_gib
        assert one.kind.gpu_memory_total_gib >= wanted.min_total_memory_gib
        assert wanted.architecture in ("", one.gpu.architecture)
        assert wanted.count in (None, one.kind.gpus)
        assert wanted.everything or one.obtainable
        assert (one.hourly_usd is None) == (one.priced_on is None)
        if wanted.region:
            assert one.region == wanted.region
        if one.hourly_usd is not None:
            prices = one.kind.spot_usd if wanted.market == "spot" else one.kind.on_demand_usd
            assert one.region in prices
    assert not {one.kind.name for one in found.offers} & {one.kind.name for one in found.nearly}
    known = [one.hourly_usd for one in found.offers if one.obtainable and one.hourly_usd is not None]
    assert sort != "usd-per-hour" or known == sorted(known)


@given(wanted=specs)
def test_the_order_changes_nothing_else(wanted: SearchCriteria):
    catalog = load()

    def found(sort: Sort) -> set[str]:
        return {one.kind.name for one in rank_offers(catalog, wanted, sort, home_region="").offers}

    assert len({frozenset(found(sort)) for sort in SORTS}) == 1


@given(wanted=specs)
def test_asking_for_more_finds_no_more(wanted: SearchCriteria):
    catalog = load()

    def found(one: SearchCriteria) -> set[str]:
        return {offer.kind.name for offer in rank_offers(catalog, one, "memory", home_region="").offers}

    assert found(replace(wanted, min_memory_gib=wanted.min_memory_gib + 1)) <= found(wanted)
    assert found(replace(wanted, min_total_memory_gib=wanted.min_total_memory_gib + 1)) <= found(wanted)
    assert found(wanted) <= found(replace(wanted, everything=True))


def test_an_offer_is_a_value():
    catalog = load()
    kind = catalog.types["p3dn.24xlarge"]
    assert offer_of(catalog, kind, "spot", "", "") == offer_of(catalog, kind, "spot", "", "")
    assert isinstance(offer_of(catalog, kind, "spot", "", ""), Offer)
