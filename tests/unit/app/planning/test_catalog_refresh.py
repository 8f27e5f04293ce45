"""A refresh from a scripted source overlays what was read onto the catalog and keeps the rest."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.errors import AuthError, CloudError, UsageError
from cloudgpu.paths import Home
from cloudgpu.run.progress import Note
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, known_catalog
from tests.manual_clock import ManualClock

NAMES = ("p3dn.24xlarge", "p3.16xlarge", "g5.48xlarge")
SHIPPED = replace(load(), types={name: load().types[name] for name in NAMES})
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
FACTS = {
    "p3dn.24xlarge": TypeFacts("V100", 8, Decimal(32), 96, 768, 1, 1, "", ("on-demand", "spot"), 2, 900, True),
    "g5.48xlarge": TypeFacts("A10G", 8, Decimal("22.4"), 192, 768, 1, 1, "", ("on-demand", "spot"), 2, 3800, True),
    "z9.xlarge": TypeFacts("X9", 1, Decimal(10), 4, 16, 0, 1, "", ("on-demand",), 0, 0, True),
}


@dataclass
class ScriptedSource:
    """A cloud that returns the shipped catalog unless a test changes the data or scripts an error."""

    target: str = "aws"
    endpoint: str = ""
    refuses: dict = field(default_factory=dict)
    prices: dict = field(default_factory=dict)
    described: dict = field(default_factory=lambda: dict(FACTS))
    queries: list = field(default_factory=list)

    def account(self):
        return "111122223333"

    def regions(self):
        return ["us-east-1", "eu-west-1", "xx-new-9"]

    def tell(self, part, region, rows):
        self.queries.append((region, part))
        err = self.refuses.get((region, part)) or self.refuses.get(part)
        if err:
            raise err
        return rows

    def types(self, region):
        return self.tell("types", region, self.described)

    def zones(self, region):
        shipped = {name: kind.zones[region] for name, kind in SHIPPED.types.items() if region in kind.zones}
        return self.tell("zones", region, {**shipped, "m5.large": (f"{region}a",)})

    def on_demand(self, region):
        shipped = {k.name: k.on_demand_usd[region] for k in SHIPPED.types.values() if region in k.on_demand_usd}
        return self.tell("on_demand", region, {**shipped, **self.prices, "m5.large": Decimal(1)})

    def spot(self, region, types):
        self.spot_types = list(types)
        shipped = {k.name: k.spot_usd[region] for k in SHIPPED.types.values() if region in k.spot_usd}
        return self.tell("spot", region, shipped)

    def images(self, region, parameters):
        return self.tell("images", region, dict.fromkeys(parameters, "ami-1"))

    def quotas(self, region):
        return self.tell("quotas", region, {"L-417A185B": 96})


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path).ensure()


@pytest.fixture
def source():
    return ScriptedSource()


@pytest.fixture
def events():
    return []


@pytest.fixture
def refreshing(home, source, events):
    return CatalogRefresh(
        source, source, CatalogSnapshots(home, source.target), SHIPPED, ManualClock(NOW), events.append
    )


def test_refresh_without_changes_updates_the_reading_dates(home, source, refreshing):
    done = refreshing.refresh(["us-east-1", "us-east-1"])
    assert (done.entry.number, done.entry.summary, done.unread) == (1, "nothing changed", ())
    assert len(source.queries) == len(set(source.queries)) == 6
    assert done.left_out == {"z9.xlarge": "X9"}
    assert source.spot_types == ["p3dn.24xlarge", "g5.48xlarge"], (
        "prices of types that cannot be planned are not queried"
    )
    kept = CatalogSnapshots(home, "aws").current().regions["us-east-1"]
    assert kept.on_demand.source == "Pricing GetProducts"
    assert "m5.large" not in {**kept.on_demand.rows, **kept.zones.rows}
    assert "p3.16xlarge" in kept.on_demand.rows, "the price list still contains retired types"
    kind = known_catalog(home, "aws").types["p3dn.24xlarge"]
    assert (kind.price_read_on("us-east-1"), kind.price_read_on("us-west-2")) == (NOW.date(), kind.priced_on)


def test_changed_price_is_reported_and_used(home, source, refreshing):
    source.prices = {"p3dn.24xlarge": Decimal("29.5")}
    done = refreshing.refresh(["us-east-1"])
    assert done.entry.summary == "1 price changed"
    assert done.entry.lines == ("price: p3dn.24xlarge us-east-1: 31.212 -> 29.5 USD/h (-5.5 %)",)
    assert known_catalog(home, "aws").types["p3dn.24xlarge"].on_demand_usd["us-east-1"] == Decimal("29.5")
    assert refreshing.refresh(["us-east-1"]).entry.summary == "nothing changed"


def test_failed_region_parts_are_reported_and_others_applied(home, source, refreshing):
    source.prices = {"p3dn.24xlarge": Decimal("29.5")}
    denied = AuthError("reading the price list of eu-west-1: not allowed", code="AccessDeniedException")
    source.refuses = {("eu-west-1", "on_demand"): denied, ("eu-west-1", "types"): CloudError("gone")}
    done = refreshing.refresh(["us-east-1", "eu-west-1"])
    assert [(failure.region, failure.part, failure.reason) for failure in done.unread] == [
        ("eu-west-1", "on_demand", denied.message),
        ("eu-west-1", "types", "gone"),
    ]
    catalog = known_catalog(home, "aws")
    shipped = SHIPPED.types["p3dn.24xlarge"].on_demand_usd
    assert catalog.types["p3dn.24xlarge"].on_demand_usd == {**shipped, "us-east-1": Decimal("29.5")}
    readings = CatalogSnapshots(home, "aws").current().regions["eu-west-1"]
    assert (readings.types, readings.on_demand) == (None, None)
    assert readings.zones is not None


@pytest.mark.parametrize("part", ["zones", "on_demand"])
def test_empty_response_is_not_applied(home, source, refreshing, part, monkeypatch):
    monkeypatch.setattr(source, part, lambda region: {})
    done = refreshing.refresh(["us-east-1"])
    (failure,) = done.unread
    assert failure.part == part
    assert failure.reason.startswith("the response lists none of the")
    kind = known_catalog(home, "aws").types["p3dn.24xlarge"]
    assert kind.zones["us-east-1"]
    assert kind.on_demand_usd["us-east-1"]


def test_refresh_writes_nothing_if_every_part_fails(home, source, refreshing):
    source.refuses = dict.fromkeys(
        ("types", "zones", "on_demand", "spot", "images", "quotas"), AuthError("denied", code="AccessDenied")
    )
    with pytest.raises(AuthError, match="denied"):
        refreshing.refresh(["us-east-1"])
    assert not (home.root / "catalog").exists()


def test_type_no_longer_described_in_any_region_is_retired(home, source, refreshing):
    del source.described["p3dn.24xlarge"]
    done = refreshing.refresh(sorted(SHIPPED.types["p3dn.24xlarge"].zones))
    assert "1 type retired" in done.entry.summary
    assert "zone removed" not in done.entry.summary, "the retirement covers the removed zones"
    kind = known_catalog(home, "aws").types["p3dn.24xlarge"]
    assert (kind.retired, kind.retired_on) == (True, NOW.date())


def test_region_missing_from_catalog_is_looked_up_in_the_account(home, source, refreshing):
    assert refreshing.refresh(["xx-new-9"]).entry.regions == ("xx-new-9",)
    assert "xx-new-9" in known_catalog(home, "aws").regions
    with pytest.raises(UsageError, match=r"unknown region us-east-11; did you mean \"us-east-1\"\?"):
        refreshing.refresh(["us-east-11"])


def test_refresh_everywhere_reads_all_regions_of_the_account(source, refreshing, events):
    assert refreshing.refresh([], everywhere=True).entry.regions == ("eu-west-1", "us-east-1", "xx-new-9")
    assert [event.text for event in events if isinstance(event, Note)] == [
        "reading catalog data for 3 regions from aws",
        "read eu-west-1",
        "read us-east-1",
        "read xx-new-9",
    ]


def test_refresh_does_not_change_other_targets(home, source):
    rehearsal = ScriptedSource("rehearsal", "rehearsal:KEY", prices={"p3dn.24xlarge": Decimal(1)})
    done = CatalogRefresh(
        rehearsal, rehearsal, CatalogSnapshots(home, "rehearsal"), SHIPPED, ManualClock(NOW), print
    ).refresh(["us-east-1"])
    assert done.simulated
    assert known_catalog(home, "aws") is load()
