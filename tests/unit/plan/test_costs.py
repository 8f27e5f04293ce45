"""Costs besides the nodes, items without a known price, and the expected cost of the work."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloudgpu.catalog import load
from cloudgpu.catalog.prices_and_quotas import other_price
from cloudgpu.ledger.billing import MINIMUM_S
from cloudgpu.plan import planner
from cloudgpu.plan.costs import SHORTEST_CHARGE_S, CostItem, items_besides_nodes, total_usd, unpriced
from cloudgpu.plan.named_resources import DatasetSeen, Lookups
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import rules
from cloudgpu.recipe.document import field_problems
from cloudgpu.recipe.schema import Recipe

CATALOG = load()


def recipe(**sections) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p3dn.24xlarge"},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 10_000},
            **sections,
        }
    )


def make(one: Recipe, quotes: Quotes | None = None, region: str = "us-east-1"):
    return planner.build_plan(
        PlannerInput(
            one, target="aws", catalog=CATALOG, quotes=quotes or Quotes(), default_region=region, today=date(2026, 8, 1)
        )
    )


@pytest.mark.parametrize(
    ("way", "addresses", "gateway"),
    [("auto", 3, False), ("elastic", 3, False), ("nat", 2, True), ("private", 0, False)],
)
def test_each_public_address_mode_bills_its_addresses_and_gateway(way, addresses, gateway):
    found = {item.kind: item for item in items_besides_nodes(3, 100, "us-east-1", way)}
    assert found["disks"].count == 3
    assert ("addresses" in found) == bool(addresses)
    if addresses:
        assert (found["addresses"].count, found["addresses"].usd) == (addresses, addresses * Decimal("0.005"))
    assert ("gateway" in found) == gateway
    assert not gateway or found["gateway"].whole_hours
    assert all(item.source and item.priced_on for item in found.values())


def test_disk_price_is_prorated_over_a_30_day_month():
    (disk, _) = items_besides_nodes(1, 720, "us-east-1", "auto")
    assert disk.usd == Decimal("0.08")
    assert disk.label == "1 disk of 720 GiB (gp3)"


def test_items_without_known_price_are_listed_and_excluded_from_total():
    found = items_besides_nodes(2, 100, "ap-southeast-5", "nat")
    assert other_price("gp3_gib_month_usd", "ap-southeast-5") is None
    assert unpriced(found) == ("2 disks of 100 GiB (gp3)", "1 NAT gateway")
    assert total_usd(found, 3600) == Decimal("0.01")
    assert [item.until_usd(3600) for item in found if item.usd is None] == [None, None]


def test_plan_lists_unpriced_items_excluded_from_worst_case():
    zone = "ap-southeast-5a"
    quotes = Quotes(
        zones={("p3dn.24xlarge", "ap-southeast-5"): (zone,)},
        prices={("p3dn.24xlarge", zone, "on-demand"): Decimal(40)},
        live=True,
    )
    plan = make(recipe(), quotes, region="ap-southeast-5")
    assert plan.unpriced == ("1 disk of 200 GiB (gp3)",)
    assert plan.as_json()["unpriced"] == ["1 disk of 200 GiB (gp3)"]
    (disk,) = [item for item in plan.as_json()["costs"] if item["kind"] == "disks"]
    assert (disk["usd"], disk["until_expiry_usd"]) == (None, None)


@given(
    st.sampled_from(["auto", "elastic", "nat", "private"]),
    st.integers(1, 500),
    st.integers(1, 16_000),
    st.integers(1, 1_000_000),
    st.integers(0, 100_000),
)
def test_non_node_costs_never_decrease_with_longer_runtime(way, nodes, disk_gib, seconds, more):
    items = items_besides_nodes(nodes, disk_gib, "eu-west-1", way)
    assert total_usd(items, seconds) <= total_usd(items, seconds + more)
    assert total_usd(items, seconds) == total_usd(items[::-1], seconds)


@given(
    st.builds(
        CostItem,
        kind=st.sampled_from(["disks", "transfer"]),
        count=st.integers(1, 9),
        what=st.text(max_size=5),
        usd=st.none() | st.decimals(0, 1000, places=9),
        priced_on=st.none() | st.dates(date(2000, 1, 1), date(2099, 12, 31)),
        source=st.text(max_size=5),
        per=st.sampled_from(["hour", "once", "month"]),
        whole_hours=st.booleans(),
    )
)
def test_cost_item_round_trips_through_json(item):
    assert CostItem.from_json(item.as_json()) == item


RATE = {
    "images_per_s": {
        "pattern": "i=(?P<value>.*)",
        "unit": "img/s",
        "better": "higher",
        "reference": {"value": 1000, "on": "8 x V100", "source": "this test"},
    }
}


def test_expected_cost_uses_reference_rate_of_the_metric():
    plan = make(recipe(metrics=RATE, work={"metric": "images_per_s", "amount": 7_200_001}))
    expected = plan.expected
    assert (expected.seconds, expected.on, expected.unit) == (7201, "8 x V100", "img/s")
    # 7201 s of a node, its disk and its address.
    assert expected.usd == Decimal("62.49")
    assert plan.as_json()["expected"]["usd"] == "62.49"
    assert make(recipe(metrics=RATE)).expected is None


@pytest.mark.parametrize(
    ("metrics", "metric", "message"),
    [
        (RATE, "image_per_s", 'unknown metric image_per_s; did you mean "images_per_s"?'),
        (
            {"loss": {"pattern": "(?P<value>x)", "better": "lower"}},
            "loss",
            "loss is not a rate; expected a unit like img/s, got no unit",
        ),
        (
            {"rate": {"pattern": "(?P<value>x)", "better": "higher", "unit": "img/s"}},
            "rate",
            "the estimate needs a reference value above zero for rate",
        ),
    ],
)
def test_work_without_a_known_rate_is_rejected(metrics, metric, message):
    (problem,) = rules.rule_problems(recipe(metrics=metrics, work={"metric": metric, "amount": 5}))
    assert (problem.path, problem.message) == (("work", "metric"), message)


def seen(**changes) -> Lookups:
    values = {"presence": "there", "size_bytes": 500 * 10**9, "region": "eu-west-1", **changes}
    return Lookups(datasets={"digits": DatasetSeen(**values)})


DATA = [{"name": "digits", "from": "s3://bucket/digits", "to": "/data"}]


def test_cross_region_data_transfer_is_charged_once_per_node():
    one = recipe(resources={"instance_type": "p3dn.24xlarge", "nodes": 2}, data=DATA)
    plain, far = make(one), make(one, Quotes(lookups=seen()))
    (line,) = [item for item in far.costs if item.kind == "transfer"]
    assert (line.label, line.usd, line.per) == ("2 copies of digits from eu-west-1", Decimal(20), "once")
    assert far.worst_case_usd == plain.worst_case_usd + 20
    assert far.hourly_usd == plain.hourly_usd
    assert make(one, Quotes(lookups=seen(region="us-east-1"))).costs == plain.costs
    assert make(one, Quotes(lookups=seen(region=""))).costs == plain.costs


@pytest.mark.parametrize("changes", [{"size_bytes": None}, {"whole": False}, {"region": "ap-southeast-5"}])
def test_data_of_unknown_size_or_price_is_listed_as_unpriced(changes):
    plan = make(recipe(data=DATA), Quotes(lookups=seen(**changes)))
    assert plan.unpriced == (f"1 copy of digits from {changes.get('region', 'eu-west-1')}",)
    assert plan.worst_case_usd == make(recipe(data=DATA)).worst_case_usd


def test_budget_in_another_currency_is_rejected():
    with pytest.raises(ValidationError) as caught:
        recipe(budget={"max_usd": "50 EUR"})
    (problem,) = field_problems(caught.value, {"budget": {"max_usd": "50 EUR"}})
    assert problem.text == "budget.max_usd: expected a number of US dollars, the only supported currency, got 50 EUR"


def test_plan_and_ledger_use_the_same_minimum_charge():
    assert SHORTEST_CHARGE_S == MINIMUM_S


@pytest.mark.parametrize(("seconds", "charged_s"), [(0, 60), (1, 60), (59, 60), (60, 60), (61, 61), (5400, 5400)])
def test_shorter_use_than_the_minimum_costs_the_minimum(seconds, charged_s):
    item = CostItem("nodes", 1, "node", Decimal(36), date(2026, 11, 1), "a price list")
    assert item.until_usd(seconds) == Decimal(charged_s) / 100
    assert replace(item, whole_hours=True).until_usd(seconds) == Decimal(
        0 if not seconds else 36 if seconds <= 3600 else 72
    )
