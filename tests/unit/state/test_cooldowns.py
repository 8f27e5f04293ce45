"""Recent capacity failures are remembered across commands and move candidates to the end of the order."""

from datetime import date

import pytest

from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.errors import CapacityError, QuotaError
from cloudgpu.plan.plan import Quotes
from cloudgpu.state.cooldowns import COOLDOWNS, Cooldowns
from tests.unit.app.plan_on import plan_on

PLACE = ("p3dn.24xlarge", "us-east-1c", "on-demand")
RECIPE = """
schema: 1
name: cool
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}
launch: {with: torchrun, command: train.py, ranks_per_node: 1}
budget: {expiry: 1h, max_usd: 100}
"""


@pytest.fixture
def cooldowns(workspace):
    return Cooldowns(workspace.home, workspace.clock)


def refuse(workspace, make, err):
    workspace.cloud.refusals = {"us-east-1c": err}
    workspace.provisioning.create(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")


def test_capacity_failure_is_remembered_for_ten_minutes(workspace, make, cooldowns):
    refuse(workspace, make, CapacityError("none", code="InsufficientInstanceCapacity"))
    workspace.clock.sleep(181)
    assert Cooldowns(workspace.home, workspace.clock).recent(workspace.cloud) == {PLACE: 181}
    workspace.clock.sleep(418)
    assert cooldowns.recent(workspace.cloud) == {PLACE: 599}
    workspace.clock.sleep(1)
    assert cooldowns.recent(workspace.cloud) == {}


def test_repeated_capacity_failure_replaces_its_entry(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.clock.sleep(60)
    for _ in range(3):
        cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    assert len(COOLDOWNS.read(workspace.home.cooldowns).refused) == 1
    workspace.clock.sleep(541)
    assert cooldowns.recent(workspace.cloud) == {PLACE: 541}


def test_quota_failure_is_not_recorded_as_capacity_failure(workspace, make, cooldowns):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("limit", code="VcpuLimitExceeded")}
    workspace.provisioning.create(make.plan(make.candidate("us-east-1c"), make.candidate("us-west-2b")), "demo")
    assert cooldowns.recent(workspace.cloud) == {}


def test_successful_launch_clears_cooldown(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    cooldowns.note(workspace.cloud, make.candidate("us-east-1d"))
    workspace.provisioning.create(make.plan(make.candidate("us-east-1c")), "demo")
    assert list(cooldowns.recent(workspace.cloud)) == [("p3dn.24xlarge", "us-east-1d", "on-demand")]


def test_cooldowns_are_separate_per_account_and_endpoint(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.cloud.account_id = "999900001111"
    assert cooldowns.recent(workspace.cloud) == {}
    workspace.cloud.account_id, workspace.cloud.endpoint = "111122223333", ""
    assert cooldowns.recent(workspace.cloud) == {}


def test_backward_clock_jump_clears_cooldowns(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.clock.sleep(-3600)
    assert cooldowns.recent(workspace.cloud) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"refused": [{"zone": 1}]}', '{"refused": [[]]}', "\x00"])
def test_damaged_cooldown_file_reads_as_empty(workspace, make, cooldowns, text):
    workspace.home.cooldowns.write_text(text)
    assert cooldowns.recent(workspace.cloud) == {}
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    assert cooldowns.recent(workspace.cloud) == {PLACE: 0}


def test_unwritable_cooldown_file_is_ignored(workspace, make, cooldowns):
    workspace.home.cooldowns.mkdir()
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    assert cooldowns.recent(workspace.cloud) == {}


def planned(workspace, tmp_path, zones=("us-east-1c", "us-east-1d")):
    (tmp_path / "cool").mkdir(exist_ok=True)
    (tmp_path / "cool" / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "cool" / "train.py").write_text("")
    workspace.cloud.quotes = lambda wanted: Quotes(zones=dict.fromkeys(wanted, zones), live=True)
    workspace.cloud.images = lambda _: {}
    return plan_on(
        "cool",
        home=workspace.home,
        clock=workspace.clock,
        target="rehearsal",
        today=date(2026, 7, 21),
        roots=[tmp_path],
        cloud=workspace.cloud,
    ).plan


def test_plan_tries_zone_in_cooldown_last_with_note(workspace, make, cooldowns, tmp_path):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.clock.sleep(200)
    plan = planned(workspace, tmp_path)
    assert [one.zone for one in plan.candidates] == ["us-east-1d", "us-east-1c"]
    assert "\n".join(plan_lines(plan, "")).endswith(
        "note: us-east-1c p3dn.24xlarge on-demand: no capacity 3 min ago, tried last [cool-down]"
    )


def test_candidate_order_is_kept_when_all_zones_are_in_cooldown(workspace, make, cooldowns, tmp_path):
    for zone in ("us-east-1d", "us-east-1c"):
        cooldowns.note(workspace.cloud, make.candidate(zone))
    plan = planned(workspace, tmp_path)
    assert [one.zone for one in plan.candidates] == ["us-east-1c", "us-east-1d"]
    notes = [finding.message for finding in plan.findings if finding.check == "cool-down"]
    assert notes == [f"{zone} p3dn.24xlarge on-demand: no capacity 0 s ago" for zone in ("us-east-1c", "us-east-1d")]
