"""Which offers match a search, their order and prices, and the replacements for a GPU."""

from dataclasses import fields, replace
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.catalog import Catalog, load
from cloudgpu.catalog.gpu_spec import types_for_spec
from cloudgpu.catalog.ranking import Offer, SearchCriteria, Sort, memory_of, offer_of, rank_offers, replacements

SORTS = get_args(Sort)


def names(catalog: Catalog, sort: Sort = "usd-per-hour", **wanted) -> list[str]:
    return [
        offer.kind.name
        for offer in rank_offers(catalog, SearchCriteria(**wanted), sort, home_region="us-east-1").offers
    ]


def test_offers_are_sorted_by_price_with_unpriced_last(catalog):
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
def test_each_sort_option_ranks_the_expected_types_first(catalog, sort, first):
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
def test_each_search_criterion_selects_the_expected_types(catalog, wanted, found):
    assert {name.partition(".")[0] for name in names(catalog, **wanted)} == found


def test_unobtainable_types_come_last_regardless_of_price(catalog):
    assert names(catalog, everything=True)[-3:] == ["p2.8xlarge", "p3.16xlarge", "dgx-1"]


def test_near_misses_in_memory_are_returned(catalog):
    def nearly(gib: str) -> list[str]:
        wanted = SearchCriteria(min_memory_gib=Decimal(gib), count=8)
        return [offer.kind.name for offer in rank_offers(catalog, wanted, "usd-per-hour", home_region="").nearly]

    assert nearly("24") == ["g5.48xlarge"]
    assert nearly("22.35") == []
    assert nearly("25") == []


def test_offer_figures_are_for_the_whole_instance(catalog):
    offer = offer_of(catalog, catalog.types["p3dn.24xlarge"], "on-demand", "", "us-east-1")
    assert (offer.hourly_usd, offer.region) == (Decimal("31.212"), "us-east-1")
    assert offer.bandwidth_tb_s == Decimal("7.2")
    assert offer.fp16_pflop_s == 1
    assert offer.usd_per_pflop_h == Decimal("31.212")
    assert offer.usd_per_tb_s == Decimal("4.335")
    assert offer.usd_per_gpu_h == Decimal("3.9015")


def test_home_region_wins_among_equal_prices(catalog):
    kind = catalog.types["p3dn.24xlarge"]
    assert offer_of(catalog, kind, "on-demand", "", "us-west-2").region == "us-west-2"
    assert offer_of(catalog, kind, "on-demand", "", "eu-west-1").region == "us-east-1"
    assert offer_of(catalog, kind, "on-demand", "eu-west-1", "us-east-1").hourly_usd == Decimal("33.711")


def test_negligible_price_difference_does_not_change_the_region(catalog):
    prices = {"us-east-2": Decimal("21.957640"), "us-east-1": Decimal("21.957642"), "us-west-2": Decimal("21.94")}
    zones = {region: (f"{region}a",) for region in prices}
    kind = replace(catalog.types["p4d.24xlarge"], on_demand_usd=prices, zones=zones)
    assert offer_of(catalog, kind, "on-demand", "", "us-east-1").region == "us-west-2"
    kind = replace(kind, on_demand_usd={**prices, "us-west-2": Decimal(30)})
    assert offer_of(catalog, kind, "on-demand", "", "us-east-1").region == "us-east-1"
    assert offer_of(catalog, kind, "on-demand", "", "us-west-2").region == "us-east-2"


def test_spot_price_is_the_highest_observed_with_the_lowest_beside(catalog):
    offer = offer_of(catalog, catalog.types["p3dn.24xlarge"], "spot", "", "us-east-1")
    assert (offer.lowest_usd, offer.hourly_usd) == (Decimal("6.26"), Decimal("8.29"))


def test_unknown_prices_and_rates_stay_unknown(catalog):
    blocks = offer_of(catalog, catalog.types["p5e.48xlarge"], "on-demand", "", "us-east-1")
    assert (blocks.region, blocks.hourly_usd, blocks.priced_on) == ("us-east-2", None, None)
    assert blocks.usd_per_pflop_h is blocks.usd_per_tb_s is blocks.usd_per_gpu_h is None
    newest = offer_of(catalog, catalog.types["p6.48xlarge"], "on-demand", "", "us-east-1")
    assert newest.fp16_pflop_s is newest.usd_per_pflop_h is None
    bare = replace(catalog.gpus["V100"], memories=())
    assert memory_of(bare, catalog.types["p3dn.24xlarge"]) is None


def test_memory_of_a_type_is_the_nearest_gpu_memory_size(catalog):
    for name, gib in (("p4d.24xlarge", 40), ("p4de.24xlarge", 80), ("p3dn.24xlarge", 32)):
        kind = catalog.types[name]
        assert memory_of(catalog.gpus[kind.gpu], kind).gib == gib


def test_local_zone_is_not_an_offer_of_its_region(catalog):
    local = replace(
        catalog.types["g4.xlarge"], zones={"us-east-1": ("us-east-1-bos-1a",), "eu-west-1": ("eu-west-1a",)}
    )
    modified = replace(catalog, types={local.name: local})
    assert names(modified, region="us-east-1") == []
    assert offer_of(modified, local, "on-demand", "", "us-east-1").region == "eu-west-1"


def test_replacements_are_compared_by_price_per_gpu(catalog):
    """Four GPUs for 2 USD are a cheaper replacement than one GPU for 1 USD."""
    single, several = catalog.types["g4.xlarge"], catalog.types["g4.metal"]
    several = replace(several, gpus=4, on_demand_usd={"us-east-1": Decimal(2)})
    single = replace(single, on_demand_usd={"us-east-1": Decimal(1)})
    modified = replace(catalog, types={**catalog.types, single.name: single, several.name: several})
    small, _ = replacements(modified, modified.gpus["V100"], home_region="us-east-1")
    assert small.cheapest.kind.name == "g4.metal"


def test_newer_replacement_has_the_least_sufficient_memory(catalog):
    """It is preferred to a cheaper GPU with more memory."""
    expensive = replace(catalog.types["p4d.24xlarge"], on_demand_usd={"us-east-1": Decimal(90)})
    modified = replace(catalog, types={**catalog.types, expensive.name: expensive})
    _, large = replacements(modified, modified.gpus["V100"], home_region="us-east-1")
    assert large.cheapest.kind.name == "p4de.24xlarge"
    assert large.newer.kind.name == "p4d.24xlarge"


def test_offer_spec_resolves_to_its_own_instance_type():
    catalog = load()
    for kind in catalog.rentable:
        offer = offer_of(catalog, kind, "on-demand", "", "us-east-1")
        if not kind.retired:
            assert kind in types_for_spec(offer.spec, catalog)


def test_replacements_are_listed_for_each_memory_size(catalog):
    small, large = replacements(catalog, catalog.gpus["V100"], home_region="us-east-1")
    assert (small.gib, large.gib) == (16, 32)
    assert small.cheapest.kind.name == "g4.xlarge"
    assert small.newer.kind.name == "g4.xlarge"
    assert large.cheapest.kind.name == "p4d.24xlarge"
    assert large.newer.kind.name == "p4d.24xlarge"
    (newest,) = replacements(catalog, catalog.gpus["B200"], home_region="us-east-1")
    assert (newest.cheapest, newest.newer) == (None, None)


def test_cheapest_replacement_may_be_an_older_gpu(catalog):
    cheap = replace(catalog.types["p3dn.24xlarge"], on_demand_usd={"us-east-1": Decimal(1)})
    modified = replace(catalog, types={**catalog.types, cheap.name: cheap})
    (found,) = replacements(modified, modified.gpus["A10G"], home_region="us-east-1")
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


def test_search_strategy_covers_every_criterion():
    assert len(fields(SearchCriteria)) == 7


@given(wanted=specs, sort=st.sampled_from(SORTS))
def test_offers_satisfy_all_criteria_for_the_shipped_catalog(wanted: SearchCriteria, sort: Sort):
    catalog = load()
    found = rank_offers(catalog, wanted, sort, home_region="us-east-1")
    for offer in found.offers:
        assert offer.kind.gpu_memory_gib >= wanted.min_memory_gib
        assert offer.kind.gpu_memory_total_gib >= wanted.min_total_memory_gib
        assert wanted.architecture in ("", offer.gpu.architecture)
        assert wanted.count in (None, offer.kind.gpus)
        assert wanted.everything or offer.obtainable
        assert (offer.hourly_usd is None) == (offer.priced_on is None)
        if wanted.region:
            assert offer.region == wanted.region
        if offer.hourly_usd is not None:
            prices = offer.kind.spot_usd if wanted.market == "spot" else offer.kind.on_demand_usd
            assert offer.region in prices
    assert not {offer.kind.name for offer in found.offers} & {offer.kind.name for offer in found.nearly}
    known = [offer.hourly_usd for offer in found.offers if offer.obtainable and offer.hourly_usd is not None]
    assert sort != "usd-per-hour" or known == sorted(known)


@given(wanted=specs)
def test_sort_option_does_not_change_the_set_of_offers(wanted: SearchCriteria):
    catalog = load()

    def found(sort: Sort) -> set[str]:
        return {offer.kind.name for offer in rank_offers(catalog, wanted, sort, home_region="").offers}

    assert len({frozenset(found(sort)) for sort in SORTS}) == 1


@given(wanted=specs)
def test_stricter_criteria_never_return_more_offers(wanted: SearchCriteria):
    catalog = load()

    def found(criteria: SearchCriteria) -> set[str]:
        return {offer.kind.name for offer in rank_offers(catalog, criteria, "memory", home_region="").offers}

    assert found(replace(wanted, min_memory_gib=wanted.min_memory_gib + 1)) <= found(wanted)
    assert found(replace(wanted, min_total_memory_gib=wanted.min_total_memory_gib + 1)) <= found(wanted)
    assert found(wanted) <= found(replace(wanted, everything=True))


def test_offers_are_compared_by_value():
    catalog = load()
    kind = catalog.types["p3dn.24xlarge"]
    assert offer_of(catalog, kind, "spot", "", "") == offer_of(catalog, kind, "spot", "", "")
    assert isinstance(offer_of(catalog, kind, "spot", "", ""), Offer)
