"""What had no capacity a moment ago is remembered from one command to the next, as advice."""

from datetime import date

import pytest

from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.errors import CapacityError, QuotaError
from cloudgpu.plan.plan import Quotes
from cloudgpu.state.cooldowns import Cooldowns
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
    workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")


def test_a_refusal_is_remembered_for_ten_minutes(workspace, make, cooldowns):
    refuse(workspace, make, CapacityError("none", code="InsufficientInstanceCapacity"))
    workspace.clock.sleep(181)
    assert Cooldowns(workspace.home, workspace.clock).recent(workspace.cloud) == {PLACE: 181}
    workspace.clock.sleep(418)
    assert cooldowns.recent(workspace.cloud) == {PLACE: 599}
    workspace.clock.sleep(1)
    assert cooldowns.recent(workspace.cloud) == {}


def test_a_quota_is_no_lack_of_capacity(workspace, make, cooldowns):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("limit", code="VcpuLimitExceeded")}
    workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-west-2b")), "demo")
    assert cooldowns.recent(workspace.cloud) == {}


def test_capacity_that_came_back_is_forgotten_as_a_refusal(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    cooldowns.note(workspace.cloud, make.candidate("us-east-1d"))
    workspace.provisioning.up(make.plan(make.candidate("us-east-1c")), "demo")
    assert list(cooldowns.recent(workspace.cloud)) == [("p3dn.24xlarge", "us-east-1d", "on-demand")]


def test_the_same_zone_name_of_another_account_is_another_zone(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.cloud.account_id = "999900001111"
    assert cooldowns.recent(workspace.cloud) == {}
    workspace.cloud.account_id, workspace.cloud.endpoint = "111122223333", ""
    assert cooldowns.recent(workspace.cloud) == {}


def test_a_clock_that_was_set_back_does_not_make_it_last(workspace, make, cooldowns):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.clock.sleep(-3600)
    assert cooldowns.recent(workspace.cloud) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"refused": [{"zone": 1}]}', '{"refused": [[]]}', "\x00"])
def test_a_damaged_file_is_an_empty_one(workspace, make, cooldowns, text):
    workspace.home.cooldowns.write_text(text)
    assert cooldowns.recent(workspace.cloud) == {}
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    assert cooldowns.recent(workspace.cloud) == {PLACE: 0}


def test_a_home_that_cannot_be_written_stops_nobody(workspace, make, cooldowns):
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


def test_the_next_plan_tries_it_last_and_says_why(workspace, make, cooldowns, tmp_path):
    cooldowns.note(workspace.cloud, make.candidate("us-east-1c"))
    workspace.clock.sleep(200)
    plan = planned(workspace, tmp_path)
    assert [one.zone for one in plan.candidates] == ["us-east-1d", "us-east-1c"]
    assert "\n".join(plan_lines(plan, "")).endswith(
        "note: us-east-1c p3dn.24xlarge on-demand: no capacity 3 min ago, tried last [cool-down]"
    )


def test_where_all_were_refused_the_order_stays(workspace, make, cooldowns, tmp_path):
    for zone in ("us-east-1d", "us-east-1c"):
        cooldowns.note(workspace.cloud, make.candidate(zone))
    plan = planned(workspace, tmp_path)
    assert [one.zone for one in plan.candidates] == ["us-east-1c", "us-east-1d"]
    notes = [finding.message for finding in plan.findings if finding.check == "cool-down"]
    assert notes == [f"{zone} p3dn.24xlarge on-demand: no capacity 0 s ago" for zone in ("us-east-1c", "us-east-1d")]
