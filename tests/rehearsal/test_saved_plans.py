"""A saved plan is applied unchanged, or rejected with what has changed; the bill matches it."""

import json
from decimal import Decimal

import pytest

from cloudgpu.app.planning import plan_files

pytestmark = pytest.mark.rehearsal


def test_saved_plan_is_applied_unchanged_and_matches_the_bill(workspace):
    workspace.recipe()
    plan = workspace.json("plan", "plain", "--prefer", "price", "--out", "agreed.json")
    made = workspace.json("up", "--plan", "agreed.json", "--yes")
    assert (made["zone"], made["instance_type"]) == tuple(
        plan["candidates"][0][name] for name in ("zone", "instance_type")
    )
    assert made["cost"]["hourly_usd"] == plan["hourly_usd"]
    (status,) = workspace.json("status")["clusters"]
    assert status["hourly_usd"] == plan["hourly_usd"]
    workspace.run("rehearsal", "advance", "59m")
    # Disks and addresses are on the bill from launch to end, as they are in the worst case.
    (row,) = workspace.json("cost", "--by", "cluster")["rows"]
    per_hour = Decimal(row["usd"]) / Decimal(row["node_hours"]) * 2
    assert abs(per_hour - Decimal(plan["hourly_usd"])) < Decimal("0.001")
    assert Decimal(row["usd"]) <= Decimal(plan["worst_case_usd"])
    workspace.run("down", "plain")
    assert workspace.left() == {}


def test_changed_or_edited_saved_plan_is_rejected_before_launch(workspace):
    folder = workspace.recipe()
    workspace.run("plan", "plain", "--out", "agreed.json")
    refused = workspace.run("up", "plain", "--plan", "agreed.json", "--yes", code=2)
    assert "already sets RECIPE" in refused.stderr
    (folder / "train.py").write_text("print('something else')\n")
    error = workspace.json("up", "--plan", "agreed.json", "--yes", code=7)["error"]
    assert error["details"] == ["the work directory has changed"]
    assert "have changed since agreed.json was created" in error["message"]
    stored = json.loads((workspace.work / "agreed.json").read_text())
    stored["plan"]["candidates"][0]["node_hourly_usd"] = "1"
    (workspace.work / "forged.json").write_text(json.dumps(stored))
    assert "was edited after it was saved" in workspace.run("train", "--plan", "forged.json", "--yes", code=2).stderr
    del stored["sha256"]
    stored["region"] = "us-west-2"
    (workspace.work / "forged.json").write_text(json.dumps({**stored, "sha256": plan_files._checksum(stored)}))
    assert "was edited after it was saved" in workspace.run("train", "--plan", "forged.json", "--yes", code=2).stderr
    assert workspace.left() == {}


def test_planned_resources_match_those_created_by_up(workspace):
    workspace.recipe()
    assert workspace.json("plan", "plain")["resources"] is None
    foretold = workspace.json("plan", "plain", "--resources")["resources"]
    assert workspace.left() == {}
    assert not (workspace.home.root / "ssh").exists()
    assert not list(workspace.home.clusters.glob("*"))
    workspace.json("up", "plain", "--yes")
    (journal,) = workspace.home.clusters.glob("plain/*.journal")
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    made = {row["type"] for row in rows if row.get("row") == "intent"}
    assert {one["type"] for one in foretold} == made
    workspace.run("down", "plain")


def test_offers_list_prices_quotas_and_rejections_in_all_regions(workspace):
    workspace.recipe(resources="{any_of: ['V100:8', 'p3.16xlarge'], nodes: 2, prefer: price}")
    told = workspace.json("offers", "plain", "--all-regions")
    assert len(told["regions"]) >= 15
    prices = [Decimal(one["hourly_usd"]) for one in told["candidates"]]
    assert prices == sorted(prices)
    assert len({one["region"] for one in told["candidates"]}) > 1
    assert {one["quota"]["code"] for one in told["candidates"]} == {"L-417A185B"}
    assert all(one["quota"]["limit_vcpus"] is not None for one in told["candidates"])
    counted = {rule["rule"]: rule["count"] for rule in told["rules"] if not rule["kept"]}
    assert counted["retired"] == 1
    assert sum(rule["count"] for rule in told["rules"]) == len(told["considered"])
    shown = workspace.run("offers", "plain", "--all-regions").stdout
    assert "[simulated]" in shown
    assert "rejected: 1 [retired]" in shown
