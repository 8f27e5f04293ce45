"""Complete output of `catalog` and `quota`."""

from datetime import UTC, date, datetime, timedelta

import pytest

from cloudgpu.app.planning.catalog_refresh import CatalogReading, CatalogStatus, RefreshResult, UnreadPart
from cloudgpu.app.planning.quota_report import quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import RegionQuotas
from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot import Retirement
from cloudgpu.catalog.snapshot_changes import Change
from cloudgpu.cli.commands.catalog import (
    catalog_status_json,
    catalog_status_lines,
    entry_lines,
    history_json,
    history_lines,
    refresh_json,
    refresh_lines,
)
from cloudgpu.cli.commands.quota import quota_json, quota_lines
from cloudgpu.state.catalog_snapshots import History, SnapshotEntry

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ENTRY = SnapshotEntry(3, NOW, "111122223333", ("us-east-1",), 2, "1 price changed", ("price: p3dn.24xlarge ...",))
CHANGES = (
    Change("price", "p3dn.24xlarge", "us-east-1", "31.212", "29.5"),
    *(Change("spot", f"g5.{size}xlarge", "us-east-1", "1-2", "1-3") for size in range(22)),
)


@pytest.fixture
def refreshed():
    unread = UnreadPart("us-east-1", "on_demand", "reading the price list of us-east-1: denied")
    return RefreshResult(ENTRY, "rehearsal", CHANGES, (unread,), {"z9.xlarge": "X9"})


def test_refresh_output_lists_changes_and_unread_parts(refreshed):
    shown = refresh_lines(refreshed)
    assert shown[:3] == [
        "rehearsal us-east-1: 1 price changed (snapshot 3)  [simulated]",
        "  price: p3dn.24xlarge us-east-1: 31.212 -> 29.5 USD/h (-5.5 %)",
        "  spot: g5.0xlarge us-east-1: 1-2 -> 1-3 USD/h",
    ]
    assert shown[-3:] == [
        "  ... and 2 more; to list them: cloudgpu catalog history 3",
        "skipped: z9.xlarge has the unknown GPU X9",
        "unknown: us-east-1 on-demand: reading the price list of us-east-1: denied; keeping the previous data",
    ]
    assert len(shown) == 1 + 1 + 20 + 3


def test_refresh_json_contains_every_change(refreshed):
    told = refresh_json(refreshed)
    assert (told["overlay"], told["simulated"], told["read_at"]) == (3, True, "2026-11-21T12:00:00Z")
    assert len(told["changes"]) == 23
    assert told["changes"][0] == {
        "kind": "price",
        "what": "p3dn.24xlarge",
        "region": "us-east-1",
        "before": "31.212",
        "after": "29.5",
    }
    assert told["unread"][0]["part"] == "on_demand"


def knowledge(**changes):
    base = {
        "target": "aws",
        "entry": ENTRY,
        "known": (CatalogReading("us-east-1", "on_demand", 63, NOW, "Pricing GetProducts"),),
        "retired": {"p3dn.24xlarge": Retirement(date(2026, 11, 20), "EC2 no longer has it")},
        "shipped_priced_on": (date(2026, 7, 20), date(2026, 7, 20)),
        "shipped_types": 64,
        "sources": ("AWS price list",),
    }
    return CatalogStatus(**{**base, **changes})


def test_catalog_status_shows_age_and_source_of_each_reading():
    assert catalog_status_lines(knowledge(), NOW + timedelta(hours=3)) == [
        "aws: snapshot 3, read 2026-11-21 12:00 UTC by account 111122223333",
        "",
        "region     what       rows  read                  age      source",
        "us-east-1  on-demand    63  2026-11-21 12:00 UTC  3 h ago  Pricing GetProducts",
        "retired since 2026-11-20: p3dn.24xlarge (EC2 no longer has it)",
        "",
        "everything else is bundled with cloudgpu: 64 types, prices read 2026-07-20 (124 d ago)",
        "  AWS price list",
    ]
    told = catalog_status_json(knowledge(), NOW + timedelta(hours=3))
    assert (told["read"][0]["age_s"], told["overlay"], told["simulated"]) == (10800, 3, False)


def test_catalog_status_without_snapshot_shows_only_bundled_data():
    shown = catalog_status_lines(knowledge(entry=None, known=(), retired={}), NOW)
    assert shown[0] == "aws: no data has been read yet; to read it: cloudgpu catalog refresh --on aws"
    assert shown[-2] == "everything is bundled with cloudgpu: 64 types, prices read 2026-07-20 (124 d ago)"
    assert catalog_status_json(knowledge(entry=None, known=(), retired={}), NOW)["overlay"] == 0


def test_catalog_history_marks_the_snapshot_in_use():
    many = SnapshotEntry(4, NOW, "1", tuple(f"r-{n}" for n in range(17)), 3, "nothing changed", ())
    assert history_lines(History(3, (ENTRY, many)), "aws") == [
        "   snapshot  read                  base  regions     changed",
        "*         3  2026-11-21 12:00 UTC     2  us-east-1   1 price changed",
        "          4  2026-11-21 12:00 UTC     3  17 regions  nothing changed",
    ]
    assert history_lines(History(0, (ENTRY,)), "aws")[-1] == "aws: the catalog bundled with cloudgpu is in use"
    assert history_lines(History(), "aws") == [
        "aws: no data has been read yet; to read it: cloudgpu catalog refresh --on aws"
    ]
    assert entry_lines(ENTRY) == [
        "snapshot 3, read 2026-11-21 12:00 UTC from us-east-1: 1 price changed",
        "  price: p3dn.24xlarge ...",
    ]
    assert history_json(History(3, (ENTRY,)), "aws", None)["history"][0]["changes"] is None
    assert history_json(History(3, (ENTRY,)), "aws", ENTRY)["history"][0]["changes"] == ["price: p3dn.24xlarge ..."]


QUOTA = "Running On-Demand P instances (L-417A185B)"
FOUND = (
    RegionQuotas("us-east-1", {"L-417A185B": 192, "L-7212CCBC": 0}, NOW, {"L-417A185B": 96}, NOW),
    RegionQuotas("eu-west-1", None, None, {}, NOW, ("reading the quotas of eu-west-1: denied",)),
)


def test_quota_output_shows_nodes_and_increase_request_commands():
    told = quota_report_lines(FOUND, report_subjects(load(), gpu="V100", instance_type=""), ["on-demand"], 2)
    shown = quota_lines(told, FOUND, "aws", NOW + timedelta(minutes=5))
    assert shown == [
        "vCPUs of running instances on aws",
        "",
        f"region     market     type             limit   in use     free  per node    nodes  {'quota':42}  read",
        f"us-east-1  on-demand  p3dn.24xlarge      192       96       96        96        1  {QUOTA}  5 min ago",
        f"eu-west-1  on-demand  p3dn.24xlarge  unknown  unknown  unknown        96  unknown  {QUOTA}  -",
        "",
        "unknown: eu-west-1: reading the quotas of eu-west-1: denied",
        "quota too low for 2 nodes of p3dn.24xlarge on-demand in us-east-1: 192 vCPUs are needed; to request more:",
        "    aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
        "--desired-value 288 --region us-east-1",
        "    https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-417A185B",
        "unknown whether the quota is sufficient for 2 nodes of p3dn.24xlarge on-demand in eu-west-1: "
        "192 vCPUs are needed; to request more:",
        "    aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
        "--desired-value 192 --region eu-west-1",
        "    https://eu-west-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-417A185B",
    ]


def test_quota_json_uses_null_for_unknown_values():
    told = quota_report_lines(FOUND, report_subjects(load(), gpu="V100", instance_type=""), ["on-demand"], 2)
    document = quota_json(told, FOUND, "rehearsal", NOW + timedelta(minutes=5))
    known, unknown = document["quotas"]
    assert document["simulated"]
    assert (known["limit_vcpus"], known["used_vcpus"], known["nodes_free"], known["enough"]) == (192, 96, 1, False)
    assert (known["needed_vcpus"], known["age_s"]) == (192, 300)
    assert [unknown[name] for name in ("limit_vcpus", "used_vcpus", "free_vcpus", "nodes_free", "enough")] == [None] * 5
    assert document["unread"] == [{"region": "eu-west-1", "reason": "reading the quotas of eu-west-1: denied"}]
