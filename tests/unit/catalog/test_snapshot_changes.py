"""Count and describe what a catalog refresh changed."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.app.planning.catalog_refresh import change_line
from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings, Retirement, TypeFacts
from cloudgpu.catalog.snapshot_changes import apply_snapshot, changes, summarize_changes

NAMES = ("p3dn.24xlarge", "p4d.24xlarge", "g5.48xlarge")
SHIPPED = replace(load(), types={name: load().types[name] for name in NAMES})
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REGION = "us-east-1"
FACTS = TypeFacts("V100", 4, Decimal(32), 48, 384, 1, 1, "50 Gigabit", ("on-demand",), 0, 0, True)


def laid(retired=(), **rows):
    readings = RegionReadings(**{part: Reading(NOW, "a call", some) for part, some in rows.items()})
    gone = {name: Retirement(NOW.date(), "nowhere") for name in retired}
    return CatalogSnapshot("aws", "1", "", {REGION: readings}, gone)


def differing(was, now):
    before = apply_snapshot(SHIPPED, was) if was else SHIPPED
    return changes(before, apply_snapshot(SHIPPED, now), was, now, [REGION])


def as_shipped(field):
    return {
        name: getattr(kind, field)[REGION] for name, kind in SHIPPED.types.items() if REGION in getattr(kind, field)
    }


def test_unchanged_readings_are_no_changes():
    same = laid(on_demand=as_shipped("on_demand_usd"), zones=as_shipped("zones"), spot=as_shipped("spot_usd"))
    found = differing(None, same)
    assert found == ()
    assert summarize_changes(found) == "nothing changed"


def test_every_kind_of_change_is_counted_and_described():
    prices = {**as_shipped("on_demand_usd"), "p3dn.24xlarge": Decimal("29.5"), "g9.xlarge": Decimal(2)}
    del prices["p4d.24xlarge"]
    zones = {**as_shipped("zones"), "p3dn.24xlarge": ("us-east-1c", "us-east-1f"), "g9.xlarge": ("us-east-1a",)}
    spot = {"p3dn.24xlarge": (Decimal(6), Decimal(9))}
    was = laid(images={"/a": "ami-1", "/b": "ami-1"}, quotas={"L-1": 0})
    now = laid(
        ["g5.48xlarge"],
        types={"g9.xlarge": FACTS},
        on_demand=prices,
        zones=zones,
        spot=spot,
        images={"/a": "ami-2", "/c": "ami-3"},
        quotas={"L-1": 192, "L-2": 5},
    )
    found = differing(was, now)
    told = [change_line(one) for one in found]
    assert told == [
        "price: p3dn.24xlarge us-east-1: 31.212 -> 29.5 USD/h (-5.5 %)",
        "price new: g9.xlarge us-east-1: 2 USD/h",
        "price gone: p4d.24xlarge us-east-1: was 21.957642 USD/h",
        "retired: g5.48xlarge: previous -> retired since 2026-11-21",
        "type new: g9.xlarge: 4 x V100 32 GiB",
        "zone new: g9.xlarge us-east-1: us-east-1a",
        "zone new: p3dn.24xlarge us-east-1: us-east-1f",
        "zone gone: p3dn.24xlarge us-east-1: was us-east-1d",
        "image: /a us-east-1: ami-1 -> ami-2",
        "quota: L-1 us-east-1: 0 -> 192 vCPUs",
        "spot: p3dn.24xlarge us-east-1: 6.26-8.29 -> 6-9 USD/h",
        "spot gone: p4d.24xlarge us-east-1: was 2.4655-8.1915 USD/h",
    ]
    assert summarize_changes(found) == (
        "1 price changed, 1 new price, 1 price removed, 1 type retired, 1 new type, 2 new zones, 1 zone removed, "
        "1 image updated, 1 quota changed, 1 spot price changed, 1 spot price removed"
    )


@given(st.dictionaries(st.sampled_from(NAMES), st.decimals("0.01", "99", places=2)))
def test_reverse_comparison_gives_reversed_changes(prices):
    now, plain = laid(on_demand=prices), laid(on_demand=as_shipped("on_demand_usd"))
    there, back = differing(plain, now), differing(now, plain)
    turned = {"price": "price", "price-new": "price-gone", "price-gone": "price-new"}
    assert {(turned[one.kind], one.what, one.after, one.before) for one in there} == {
        (one.kind, one.what, one.before, one.after) for one in back
    }
    assert len(there) == sum(1 for name, usd in as_shipped("on_demand_usd").items() if prices.get(name) != usd)


def test_changes_in_other_regions_are_not_reported():
    now = laid(on_demand={})
    assert changes(SHIPPED, apply_snapshot(SHIPPED, now), None, now, ["eu-west-1"]) == ()
