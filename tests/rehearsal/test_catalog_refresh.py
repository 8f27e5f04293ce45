"""`catalog` and `quota` commands: data read from the cloud changes the plan, and a revert undoes that."""

import signal
from decimal import Decimal

import pytest

from cloudgpu.rehearsal import client
from cloudgpu.state.catalog_snapshots import known_catalog

pytestmark = pytest.mark.rehearsal

TYPE, REGION = "p3dn.24xlarge", "us-east-1"


def node_usd(workspace, *more):
    plan = workspace.json("plan", "plain", "--offline", *more)
    return {(one["node_hourly_usd"], one["priced_on"]) for one in plan["candidates"]}


def known_usd(workspace, target="rehearsal"):
    return known_catalog(workspace.home, target).types[TYPE].on_demand_usd[REGION]


def test_price_refresh_changes_the_plan_until_reverted(workspace):
    workspace.recipe()
    ((shipped, shipped_on),) = node_usd(workspace)
    workspace.run("rehearsal", "prices", f"{REGION}/{TYPE}/on-demand=29.5")
    assert known_usd(workspace) == Decimal(shipped), "nobody has read it yet"
    done = workspace.json("catalog", "refresh", "--on", "rehearsal")
    assert (done["summary"], done["overlay"], done["simulated"], done["unread"]) == ("1 price changed", 1, True, [])
    assert [(one["what"], one["before"], one["after"]) for one in done["changes"]] == [(TYPE, shipped, "29.5")]
    assert node_usd(workspace) == {("29.5", done["read_at"][:10])}
    # Never for the real AWS.
    assert node_usd(workspace, "--on", "aws") == {(shipped, shipped_on)}
    shown = workspace.json("catalog", "show")
    assert {(one["region"], one["what"]) for one in shown["read"]} == {
        (REGION, part) for part in ("types", "zones", "on_demand", "spot", "images", "quotas")
    }
    assert workspace.run("catalog", "revert").stdout == (
        "rehearsal: the catalog bundled with cloudgpu is in use again (previously: snapshot 1)\n"
    )
    assert node_usd(workspace) == {(shipped, shipped_on)}
    workspace.run("catalog", "revert", "1")
    assert known_usd(workspace) == Decimal("29.5")
    assert workspace.run("catalog", "history").stdout.splitlines()[-1].startswith("*         1")
    # A damaged snapshot stops what is bought by its prices, names itself and the way on.
    workspace.home.catalog("rehearsal").snapshot(1).write_text("{")
    refused = workspace.run("plan", "plain", "--offline", code=10)
    assert "overlay-0001.json cannot be used" in refused.stderr
    assert "cloudgpu catalog revert 0 --on rehearsal" in refused.stderr
    workspace.run("status")
    workspace.run("catalog", "revert", "0", "--on", "rehearsal")
    assert known_usd(workspace) == Decimal(shipped)


def test_denied_or_killed_refresh_keeps_the_previous_catalog(workspace):
    client.put_prices(workspace.cloud, {f"{REGION}/{TYPE}/on-demand": "29.5", f"{REGION}/{TYPE}/spot": "7"})
    client.put_faults(workspace.cloud, [{"action": "GetProducts", "code": "AccessDeniedException", "message": "no"}])
    part = workspace.json("catalog", "refresh", "--region", REGION, "--region", "us-west-2", code=8)
    assert {(one["region"], one["part"]) for one in part["unread"]} == {
        (REGION, "on_demand"), ("us-west-2", "on_demand"),
    }  # fmt: skip
    assert part["summary"] == "1 spot price changed"
    index = workspace.home.catalog("rehearsal").index.read_bytes()
    # Nothing at all: an error, and nothing is written.
    client.put_faults(workspace.cloud, [{"action": "*", "code": "AccessDeniedException", "message": "no"}])
    workspace.run("catalog", "refresh", code=8)
    assert workspace.home.catalog("rehearsal").index.read_bytes() == index
    client.put_faults(workspace.cloud, [{"action": "ListServiceQuotas", "do": "hold", "phase": "before"}])
    process = workspace.popen("catalog", "refresh", "--on", "rehearsal")
    workspace.until_held(process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    client.put_faults(workspace.cloud, [])
    assert workspace.home.catalog("rehearsal").index.read_bytes() == index
    again = workspace.json("catalog", "refresh")
    assert (again["overlay"], again["summary"]) == (2, "1 price changed")


def test_type_withdrawn_by_aws_is_retired_until_offered_again(workspace):
    workspace.recipe()
    client.put_script(workspace.cloud, {"cloud": {"retired": [TYPE]}})
    sellers = [f"--region={name}" for name in known_catalog(workspace.home, "rehearsal").types[TYPE].zones]
    done = workspace.json("catalog", "refresh", *sellers)
    assert [one["what"] for one in done["changes"] if one["kind"] == "retired"] == [TYPE]
    refused = workspace.json("plan", "plain", "--offline", code=7)
    assert refused["candidates"] == []
    assert any("retired" in one["message"] for one in refused["findings"])
    client.put_script(workspace.cloud, {})
    back = workspace.json("catalog", "refresh", *sellers)
    assert [one["what"] for one in back["changes"] if one["kind"] == "back"] == [TYPE]
    assert not known_catalog(workspace.home, "rehearsal").types[TYPE].retired


def test_quotas_are_reported_per_region_and_checked_by_the_plan(workspace):
    workspace.recipe()
    client.put_quotas(workspace.cloud, {f"{REGION}/p/on-demand": 96})
    told = workspace.json("quota", "--gpu", "V100", "--nodes", "2", "--market", "on-demand", "--all-regions")["quotas"]
    assert len({one["region"] for one in told}) == len(told) > 10
    (line,) = [one for one in told if one["region"] == REGION]
    assert (line["limit_vcpus"], line["used_vcpus"], line["nodes_free"], line["enough"]) == (96, 0, 1, False)
    assert "--quota-code L-417A185B --desired-value 192" in line["request_command"]
    (short,) = [one for one in workspace.json("plan", "plain", code=7)["findings"] if one["severity"] == "error"]
    assert short["check"] == "quota"
    assert "192 vCPUs" in short["message"]
    assert "L-417A185B" in short["message"]
    # Denied is unknown; what was told before is shown with its age.
    rules = [
        {"action": action, "code": "AccessDeniedException", "message": "no"}
        for action in ("ListServiceQuotas", "ListAWSDefaultServiceQuotas")
    ]
    client.put_faults(workspace.cloud, rules)
    denied = workspace.json("quota", "--gpu", "V100", "--market", "on-demand", code=8)
    assert (denied["quotas"][0]["limit_vcpus"], len(denied["unread"])) == (None, 1)
    old = workspace.json("quota", "--gpu", "V100", "--market", "on-demand", "--offline")
    assert old["quotas"][0]["limit_vcpus"] == 96
    assert old["quotas"][0]["age_s"] >= 0
