"""A catalog snapshot changes only what was read; its document round-trips or is rejected."""

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot import (
    CatalogSnapshot,
    Reading,
    RegionReadings,
    TypeFacts,
    merge_snapshots,
    parse_snapshot,
    to_document,
)
from cloudgpu.catalog.snapshot_changes import apply_snapshot, unknown_gpus

NAMES = ("p3dn.24xlarge", "g5.48xlarge", "p3.16xlarge", "dgx-1-32gb")
SHIPPED = replace(
    load(), types={name: load().types[name] for name in NAMES}, regions=("us-east-1", "us-west-2", "eu-west-1")
)
P3DN = SHIPPED.types["p3dn.24xlarge"]
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
TODAY = NOW.date()
FACTS = TypeFacts("V100", 8, Decimal(32), 96, 768, 1, 1, "100 Gigabit", ("on-demand", "spot"), 2, 900, True)
REGIONS = ("us-east-1", "eu-west-1", "xx-new-9")

USD = st.decimals("0.001", "100", places=3)
TYPE_NAMES = st.sampled_from((*NAMES, "p9.48xlarge"))
MOMENTS = st.integers(-300, 60).map(lambda days: NOW + timedelta(days=days))


def reading_of(rows):
    return st.none() | st.builds(Reading, MOMENTS, st.just("a call"), st.dictionaries(TYPE_NAMES, rows, max_size=3))


READINGS = st.builds(
    RegionReadings,
    types=reading_of(st.sampled_from([FACTS, replace(FACTS, gpu="X9", gpu_memory_gib=Decimal("191.5"))])),
    zones=reading_of(st.lists(st.sampled_from(["us-east-1a", "us-east-1b"]), max_size=2, unique=True).map(tuple)),
    on_demand=reading_of(USD),
    spot=reading_of(st.tuples(USD, USD).map(sorted).map(tuple)),
    images=reading_of(st.just("ami-1")),
    quotas=reading_of(st.integers(0, 10**6)),
)
SNAPSHOTS = st.builds(
    CatalogSnapshot, st.just("aws"), st.just("1"), st.just(""), st.dictionaries(st.sampled_from(REGIONS), READINGS)
)


def read(at=NOW, **rows):
    return RegionReadings(**{part: Reading(at, "a call", some) for part, some in rows.items()})


def snapshot(regions, account="1", endpoint="", target="aws"):
    return CatalogSnapshot(target, account, endpoint, regions)


@pytest.mark.parametrize("newest", REGIONS[:2])
def test_facts_of_a_new_type_are_those_read_last(newest):
    older = replace(FACTS, vcpus=64)
    regions = {region: read(NOW - timedelta(days=9), types={"p9.48xlarge": older}) for region in REGIONS[:2]}
    regions[newest] = read(NOW, types={"p9.48xlarge": FACTS})
    assert apply_snapshot(SHIPPED, snapshot(regions)).types["p9.48xlarge"].vcpus == FACTS.vcpus


def test_empty_snapshot_changes_nothing():
    assert apply_snapshot(SHIPPED, snapshot({})) == SHIPPED


@given(SNAPSHOTS)
def test_snapshot_replaces_only_readings(laid):
    after = apply_snapshot(SHIPPED, laid)
    assert after.gpus == SHIPPED.gpus
    assert after.types["dgx-1-32gb"] == SHIPPED.types["dgx-1-32gb"]
    assert set(after.regions) == {*SHIPPED.regions, *laid.regions}
    for kind in SHIPPED.rentable:
        now = after.types[kind.name]
        for region in after.regions:
            one = laid.regions.get(region, RegionReadings())
            zones = kind.zones.get(region) if one.zones is None else one.zones.rows.get(kind.name)
            assert now.zones.get(region) == zones
            fresh = one.on_demand is not None and one.on_demand.at.date() >= kind.price_read_on(region)
            usd = one.on_demand.rows.get(kind.name) if fresh else kind.on_demand_usd.get(region)
            assert now.on_demand_usd.get(region) == usd
            assert now.price_read_on(region) >= kind.price_read_on(region)


@given(SNAPSHOTS)
def test_applying_snapshot_twice_equals_applying_once(laid):
    once = apply_snapshot(SHIPPED, laid)
    again = apply_snapshot(once, laid)
    assert {name: replace(kind, sources={}) for name, kind in again.types.items()} == {
        name: replace(kind, sources={}) for name, kind in once.types.items()
    }
    assert again.regions == once.regions


@given(SNAPSHOTS)
def test_snapshot_document_round_trips(laid):
    whole = replace(laid, retired=merge_snapshots(None, laid, SHIPPED, TODAY).retired)
    assert parse_snapshot(json.loads(json.dumps(to_document(whole)))) == whole


@given(SNAPSHOTS, st.data())
def test_damaged_snapshot_document_raises_only_value_error(laid, data):
    stored = copy.deepcopy(to_document(laid))
    place = stored
    while isinstance(place, (dict, list)) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        below = place[key]
        if not isinstance(below, (dict, list)) or data.draw(st.booleans()):
            place[key] = data.draw(st.sampled_from([None, [], {}, -1, "NaN", "0", True, [[]], {"x": 1}]))
            break
        place = below
    try:
        parse_snapshot(stored)
    except ValueError:
        return


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), 2),
        (("regions", "us-east-1", "on_demand", "rows", "p3dn.24xlarge"), "NaN"),
        (("regions", "us-east-1", "on_demand", "rows", "p3dn.24xlarge"), "0"),
        (("regions", "us-east-1", "on_demand", "rows", "p3dn.24xlarge"), 31.2),
        (("regions", "us-east-1", "on_demand", "at"), "2026-11-21"),
        (("regions", "us-east-1", "spot", "rows", "p3dn.24xlarge"), ["9", "8"]),
        (("regions", "us-east-1", "quotas", "rows", "L-1"), -1),
        (("regions", "us-east-1", "quotas", "rows", "L-1"), True),
        (("regions",), []),
        (("account",), None),
    ],
)
def test_invalid_snapshot_value_is_rejected(place, value):
    stored = to_document(
        snapshot(
            {
                "us-east-1": read(
                    on_demand={"p3dn.24xlarge": Decimal(30)},
                    spot={"p3dn.24xlarge": (Decimal(6), Decimal(8))},
                    quotas={"L-1": 96},
                )
            }
        )
    )
    *way, last = place
    inner = stored
    for key in way:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(ValueError, match=r"is missing|the schema is|invalid value|is not|is reversed|has no time zone"):
        parse_snapshot(stored)


def test_prices_older_than_shipped_prices_are_ignored():
    day = datetime(2026, 7, 19, 23, tzinfo=UTC)
    assert day.date() < P3DN.priced_on
    old = snapshot({"us-east-1": read(day, on_demand={"p3dn.24xlarge": Decimal(1)})})
    assert apply_snapshot(SHIPPED, old).types["p3dn.24xlarge"].on_demand_usd == P3DN.on_demand_usd


def test_price_date_is_that_of_older_reading():
    both = read(on_demand={"p3dn.24xlarge": Decimal(30)}, spot={"p3dn.24xlarge": (Decimal(6), Decimal(8))})
    earlier = replace(both, spot=replace(both.spot, at=NOW - timedelta(days=3)))
    kind = apply_snapshot(SHIPPED, snapshot({"us-east-1": earlier})).types["p3dn.24xlarge"]
    assert kind.price_read_on("us-east-1") == TODAY - timedelta(days=3)
    assert kind.price_read_on("us-west-2") == P3DN.priced_on
    # Spot prices were not read: the shipped date stands for them, and one date stands for both.
    only = apply_snapshot(SHIPPED, snapshot({"us-east-1": replace(both, spot=None)})).types["p3dn.24xlarge"]
    assert only.price_read_on("us-east-1") == P3DN.priced_on
    assert "us-east-1: a call, read later" in only.sources["on_demand_usd"]


def gone_from(*regions):
    return snapshot({region: read(types={"g5.48xlarge": replace(FACTS, gpu="A10G")}) for region in regions})


def test_type_is_retired_when_absent_from_every_region():
    *most, last = sorted(P3DN.zones)
    partly = merge_snapshots(None, gone_from(*most), SHIPPED, TODAY)
    assert partly.retired == {}
    whole = merge_snapshots(partly, gone_from(last), SHIPPED, TODAY + timedelta(days=1))
    assert list(whole.retired) == ["p3dn.24xlarge"]
    assert last in whole.retired["p3dn.24xlarge"].source
    later = merge_snapshots(whole, gone_from(last), SHIPPED, TODAY + timedelta(days=9))
    assert later.retired["p3dn.24xlarge"].on == TODAY + timedelta(days=1)
    kind = apply_snapshot(SHIPPED, later).types["p3dn.24xlarge"]
    assert (kind.retired, kind.retired_on) == (True, TODAY + timedelta(days=1))
    back = snapshot({last: read(NOW + timedelta(days=1), types={"p3dn.24xlarge": FACTS})})
    assert merge_snapshots(later, back, SHIPPED, TODAY).retired == {}


def test_retired_type_is_active_again_when_described():
    kind = apply_snapshot(SHIPPED, snapshot({"us-east-1": read(types={"p3.16xlarge": FACTS})})).types["p3.16xlarge"]
    assert (kind.lifecycle, kind.retired_on) == ("previous", None)
    assert SHIPPED.types["p3.16xlarge"].retired


def test_new_type_is_added_when_gpu_is_known():
    facts = replace(FACTS, gpu="A10G", gpus=2, gpu_memory_gib=Decimal("22.4"))
    laid = snapshot({"us-east-1": read(types={"g9.xlarge": facts, "z9.xlarge": replace(FACTS, gpu="X9")})})
    after = apply_snapshot(SHIPPED, laid)
    assert "z9.xlarge" not in after.types
    assert unknown_gpus(SHIPPED, laid) == {"z9.xlarge": "X9"}
    new = after.types["g9.xlarge"]
    assert (new.gpus, new.vcpus, new.lifecycle, new.on_demand_usd) == (2, 96, "active", {})
    assert new.gpu_memory_gib == min(after.gpus["A10G"].memories, key=lambda one: one.gib).gib
    assert after.types_for("A10G", 2) == (new,)


@given(SNAPSHOTS, SNAPSHOTS)
def test_merge_keeps_newer_reading_of_each_source(one, other):
    both = merge_snapshots(one, other, SHIPPED, TODAY)
    for region, readings in both.regions.items():
        for part, kept in vars(readings).items():
            given_ = [getattr(laid.regions.get(region, RegionReadings()), part) for laid in (one, other)]
            told = [reading for reading in given_ if reading is not None]
            assert (kept in told) if told else kept is None
            assert all(kept.at >= reading.at for reading in told)


def test_merge_drops_readings_of_other_account_or_endpoint():
    parts = {"on_demand": {"p3dn.24xlarge": Decimal(30)}, "zones": {"p3dn.24xlarge": ("us-east-1a",)}, "quotas": {}}
    old = snapshot({"us-east-1": read(**parts)})
    foreign = merge_snapshots(old, snapshot({}, account="2"), SHIPPED, TODAY)
    assert foreign.regions == {"us-east-1": read(on_demand=parts["on_demand"])}
    assert merge_snapshots(old, snapshot({}, endpoint="elsewhere"), SHIPPED, TODAY).regions == {}
    assert merge_snapshots(old, snapshot({}, target="rehearsal"), SHIPPED, TODAY).regions == {}
