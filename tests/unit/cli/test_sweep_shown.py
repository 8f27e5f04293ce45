"""Exact output of `sweep`."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep import SweepDecision, SweepPlan, SweepResult, group_by_cluster
from cloudgpu.catalog import load
from cloudgpu.cli.commands.sweep import sweep_json, sweep_plan_lines, swept_lines
from cloudgpu.errors import AuthError
from tests.tagged_resource import Resource


def tags(cluster, owner, expires=""):
    return {"cloudgpu:cluster": cluster, "cloudgpu:owner": owner, "cloudgpu:token": cluster,
            "cloudgpu:team": "vision" if owner else "", "cloudgpu:expires-at": expires}  # fmt: skip


@pytest.fixture
def clusters(now):
    lab, old = tags("lab", "ann", "2026-11-21T05:30:00Z"), tags("old", "", "")
    gone, since = tags("spot", "bob", "2026-11-20T03:30:00Z"), now - timedelta(hours=2)
    things = [
        *(
            Resource("instance", one, "us-east-1", lab, "running", since, "p3dn.24xlarge", "on-demand")
            for one in ("a", "b")
        ),
        Resource("volume", "vol-1", "us-east-1", lab),
        Resource("volume", "vol-2", "us-east-1", lab),
        Resource("role", "cloudgpu-lab", "global", lab),
        Resource("instance", "i-3", "us-west-2", gone, "running", since, "g5.xlarge", "spot"),
        Resource("security-group", "sg-1", "eu-west-1", old),
    ]
    return group_by_cluster(things, load(), now)


@pytest.fixture
def seen(clusters):
    why = {
        "lab": SweepDecision(may_delete=False, why="yours, up"),
        "spot": SweepDecision(may_delete=True, why="past its expiry"),
        "old": SweepDecision(may_delete=False, why="nobody known owns it"),
    }
    judged = tuple((one, why[one.cluster]) for one in clusters)
    return SweepPlan(("eu-west-1", "us-east-1"), (("us-west-1", "cannot reach it"), ("global", "left alone")), judged)


def test_sweep_plan_wraps_on_a_narrow_terminal(seen, now):
    later = now + timedelta(days=1)  # after every expiry, so that the cost of a month is shown
    lines = sweep_plan_lines(seen, later, simulated=True, width=80)
    assert [line for line in lines if len(line) > 80] == []
    assert lines[3:5] == [
        "  $62.42 an hour, $124.84 so far, $45,569.52 a month if not deleted, and volumes",
        "    at unknown prices",
    ]


def test_sweep_plan_is_shown_as_text(seen, now):
    assert sweep_plan_lines(seen, now, simulated=True) == [
        "3 clusters in 2 regions (simulated)",
        "lab  owner ann, team vision; expires 2026-11-21 05:30 UTC, in 2 h",
        "  2 x p3dn.24xlarge on-demand in us-east-1 and IAM, for 2 h",
        "  $62.42 an hour, $124.84 so far, and volumes at unknown prices",
        "  and 1 role, 2 volumes",
        "  kept: yours, up",
        "old  owner unknown; expiry unknown",
        "  no instances in eu-west-1, age unknown",
        "  costs nothing",
        "  and 1 security group",
        "  kept: nobody known owns it",
        "spot  owner bob, team vision; expires 2026-11-20 03:30 UTC, 1 d ago",
        "  1 x g5.xlarge spot in us-west-2, for 2 h",
        "  unknown an hour, unknown so far, unknown a month if not deleted",
        "  to delete: past its expiry",
        "us-west-1: unknown: cannot reach it",
        "IAM: unknown: left alone",
    ]


def test_resources_without_a_price_are_named(clusters, now):
    lab = next(one for one in clusters if one.cluster == "lab")
    lab = replace(lab, unpriced=("elastic-ip", "nat-gateway", "public-ip", "volume"))
    plan = SweepPlan((), (), ((lab, SweepDecision(may_delete=False, why="yours")),))
    lines = sweep_plan_lines(plan, now, simulated=True)
    assert lines[3].endswith("and elastic IPs, NAT gateways, public IPs, volumes at unknown prices")


def test_sweep_result_lists_deleted_and_deletable_clusters(seen, clusters):
    spot = next(one for one in clusters if one.cluster == "spot")
    assert swept_lines(seen, SweepResult(()), yes=False) == [
        "nothing was deleted; to delete 1 cluster, add --yes: spot"
    ]
    assert swept_lines(seen, SweepResult((spot,)), yes=True) == ["deleted spot, verified by tag search"]
    assert swept_lines(SweepPlan((), (), ()), SweepResult(()), yes=False) == []


def test_empty_sweep_plan_is_reported(now):
    assert sweep_plan_lines(SweepPlan(("us-east-1",), (), ()), now, simulated=False) == [
        "no cluster resources in 1 region"
    ]


def test_sweep_result_is_written_as_json(seen, clusters, now):
    spot = next(one for one in clusters if one.cluster == "spot")
    document = sweep_json(seen, SweepResult((), ((spot, AuthError("the token has expired")),)), now, simulated=True)
    assert {key: document[key] for key in ("simulated", "regions", "unknown", "left")} == {
        "simulated": True,
        "regions": ["eu-west-1", "us-east-1"],
        "unknown": [
            {"region": "us-west-1", "why": "cannot reach it"},
            {"region": "global", "why": "left alone"},
        ],
        "left": ["spot: the token has expired"],
    }
    rows = {row["cluster"]: row for row in document["clusters"]}
    assert rows["spot"] == {
        "cluster": "spot",
        "owner": "bob",
        "team": "vision",
        "run_id": "",
        "regions": ["us-west-2"],
        "expires_at": "2026-11-20T03:30:00Z",
        "expired": True,
        "unreadable_expiry": None,
        "age_s": 7200,
        "instances": [
            {"id": "i-3", "instance_type": "g5.xlarge", "market": "spot", "region": "us-west-2", "state": "running"}
        ],
        "things": {"instance": 1},
        "hourly_usd": None,
        "spent_usd": None,
        "monthly_usd": None,
        "unpriced": [],
        "only_in_ledger": False,
        "goes": True,
        "why": "past its expiry",
        "ended": False,
    }
    assert (rows["lab"]["hourly_usd"], rows["lab"]["monthly_usd"]) == ("62.424", "45569.520")
    assert rows["old"]["owner"] is None


def test_sweep_lists_storage_and_images_with_delete_commands(now):
    scratch = RetainedResource("storage", "scratch-1", "t", "lustre", "ann", "us-east-1", "fs-1",
                        now - timedelta(hours=5), Decimal(1200), Decimal(168), True, "lab")  # fmt: skip
    made = now - timedelta(days=3)
    base = RetainedResource("image", "base", "i", "Volta", "bob", "us-west-2", "ami-1", made, Decimal(200), Decimal(10))
    logs = RetainedResource("storage", "logs", "l", "s3", "", "us-east-1", "cloudgpu-logs", None, None, None)
    seen = SweepPlan(
        ("us-east-1", "us-west-2"),
        (),
        (),
        (
            (scratch, SweepDecision(may_delete=True, why="disposable, and its cluster lab is gone")),
            (base, SweepDecision(may_delete=False, why=f"`{base.delete_command}` ends it")),
            (
                logs,
                SweepDecision(may_delete=False, why=f"holds data that was to be kept; `{logs.delete_command}` ends it"),
            ),
        ),
    )
    assert sweep_plan_lines(seen, now, simulated=False) == [
        "no cluster resources in 2 regions",
        "storage scratch-1  owner ann; lustre fs-1 in us-east-1",
        "  1200 GiB, $168.00 a month, created 5 h ago",
        "  to delete: disposable, and its cluster lab is gone",
        "image base  owner bob; Volta ami-1 in us-west-2",
        "  200 GiB, at most $10.00 a month, created 3 d ago",
        "  kept: `cloudgpu image delete base --region us-west-2` ends it",
        "storage logs  owner unknown; s3 cloudgpu-logs in us-east-1",
        "  size unknown, unknown a month, age unknown",
        "  kept: holds data that was to be kept; "
        "`cloudgpu storage delete logs --region us-east-1 --delete-data` ends it",
    ]
    assert swept_lines(seen, SweepResult(()), yes=False) == [
        "nothing was deleted; to delete 1 storage resource, add --yes: storage scratch-1"
    ]
    document = sweep_json(seen, SweepResult((scratch,)), now, simulated=False)
    assert [(row["name"], row["goes"], row["ended"]) for row in document["storage"]] == [
        ("scratch-1", True, True),
        ("logs", False, False),
    ]
    assert document["images"][0]["age_s"] == 3 * 86400


def test_sweep_resume_command_repeats_the_filters():
    from cloudgpu.cli.commands.sweep import _command

    assert _command(["us-east-1"], ["ann", "bob b"], "aws", all_mine=True) == (
        "cloudgpu sweep --yes --region us-east-1 --owner ann --owner 'bob b' --all-mine --on aws"
    )
    assert _command([], [], None, all_mine=False) == "cloudgpu sweep --yes"
