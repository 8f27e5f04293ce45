"""An impossible value in an AWS response is treated as unknown; the rest of the response is used."""

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.aws import prices_and_quotas
from cloudgpu.aws.ec2.tag_search import _schedule_groups, _within_calendar

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize("usd", ["NaN", "Infinity", "much", "-1", "1e300", "٣", "", None])
def test_invalid_on_demand_price_is_omitted(scripted, usd):
    listed = [
        json.dumps(
            {
                "product": {"attributes": {"instanceType": name}},
                "terms": {
                    "OnDemand": {"T": {"priceDimensions": {"D": {"unit": "Hrs", "pricePerUnit": {"USD": price}}}}}
                },
            }
        )
        for name, price in (("odd.xlarge", usd), ("g5.xlarge", "1.006"))
    ]
    scripted.stub("pricing").add_response("get_products", {"PriceList": listed})
    assert prices_and_quotas.on_demand(scripted) == {"g5.xlarge": Decimal("1.006")}


@pytest.mark.parametrize("usd", ["NaN", "much", "-1", "1e300"])
def test_invalid_spot_price_is_omitted(scripted, usd):
    rows = [("g5.xlarge", usd), ("g5.xlarge", "0.4"), ("odd.xlarge", usd)]
    told = [{"InstanceType": name, "SpotPrice": price} for name, price in rows]
    scripted.stub("ec2").add_response("describe_spot_price_history", {"SpotPriceHistory": told})
    assert prices_and_quotas.spot(scripted, ["g5.xlarge", "odd.xlarge"], NOW) == {
        "g5.xlarge": (Decimal("0.4"), Decimal("0.4"))
    }


@pytest.mark.parametrize("since", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC), None, "soon"])
def test_impossible_launch_time_is_unknown(since):
    assert _within_calendar(since) is None
    assert _within_calendar(NOW) == NOW


@pytest.mark.parametrize(
    ("cluster", "prefix"),
    [("lab", "cloudgpu-lab"), ("a b", "cloudgpu-a"), ("", "cloudgpu-"), ("x" * 256, "cloudgpu-" + "x" * 55)],
)
def test_schedule_groups_are_listed_with_valid_name_prefix(scripted, cluster, prefix):
    scripted.stub("scheduler").add_response("list_schedule_groups", {"ScheduleGroups": []}, {"NamePrefix": prefix})
    assert list(_schedule_groups(scripted, f"cloudgpu-{cluster}")) == []
    scripted.done()
