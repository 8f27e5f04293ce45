"""`extend` updates the expiry everywhere, in an order in which a crash leaves no node without an expiry."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.engine.base import PreviewStep
from cloudgpu.errors import BudgetError, CloudError, StateError, UsageError
from cloudgpu.node.bootstrap import EXTENDABLE, confirmed_expiry, extend_command
from cloudgpu.plan.capacity import Reservation, ReservationLookup
from tests.cluster_records import changed
from tests.fake_host import ScriptedResult

HOUR = timedelta(hours=1)
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def up(workspace, make):
    """A cluster that expires in one hour, with a budget for two."""
    plan = make.plan(make.candidate(), budget={"max_usd": 130, "expiry": "1h"})
    return workspace.provisioning.create(plan, "demo").record


@pytest.fixture
def extending(workspace, gang):
    return workspace.context.clusters


def row(workspace):
    (found,) = workspace.ledger.entries(cluster="demo")
    return found.spending


def expiry_commands(gang):
    """Return the expiry commands sent to the nodes, in node order."""
    return [sent.text for host in gang.hosts.values() for sent in host.sent if "expiry" in sent.text]


def test_extend_updates_record_ledger_tags_and_node_timers(workspace, gang, up, extending):
    workspace.cloud.orphans = []
    workspace.clock.sleep(600)
    done = extending.extend("demo", by=HOUR)
    until = up.lifecycle.expires_at + HOUR
    assert (done.before, done.record.lifecycle.expires_at) == (up.lifecycle.expires_at, until)
    assert done.worst_case_usd == Decimal("124.85")
    stored = workspace.records.cluster("demo")
    assert (stored.lifecycle.expires_at, stored.lifecycle.confirmed_expires_at, stored.lifecycle.first_expires_at) == (
        until,
        None,
        up.lifecycle.expires_at,
    )
    assert stored.placement.config["expiresAt"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"
    assert row(workspace).expires_at == until
    assert workspace.cloud.calls[-2:] == [
        ("up", "us-east-1", "us-east-1c"),
        ("retag", (), {"cloudgpu:expires-at": stored.placement.config["expiresAt"]}),
    ]
    assert len(expiry_commands(gang)) == 2
    assert all(wire.endswith(str(int(until.timestamp()))) for wire in expiry_commands(gang))


BLOCK = "cr-0123456789abcdef0"


def in_block(workspace, record, ends_at):
    """Make the cluster one that runs in a Capacity Block ending at `ends_at`; None if AWS has no such block."""
    found = ends_at and Reservation(
        BLOCK, "capacity-block", "us-east-1", "us-east-1c", "p4d.24xlarge", "active", 0, START, ends_at
    )
    workspace.cloud.reservation = lambda wanted, regions: ReservationLookup(found, workspace.clock.now())
    config = {**record.placement.config, "reservation": BLOCK}
    workspace.records.save_cluster(changed(record, market="capacity-block", config=config), workspace.clock.now())


def test_extend_is_limited_by_the_capacity_block_end(workspace, gang, up, extending):
    in_block(workspace, up, up.lifecycle.expires_at + HOUR)
    workspace.cloud.calls.clear()
    with pytest.raises(UsageError, match=r"ends at 2026-11-21 14:00 UTC, and AWS reclaims its nodes from .* 13:30 UTC"):
        extending.extend("demo", by=timedelta(minutes=31))
    assert workspace.cloud.calls == []
    assert workspace.records.cluster("demo").lifecycle.expires_at == up.lifecycle.expires_at
    assert (
        extending.extend("demo", by=timedelta(minutes=30)).record.lifecycle.expires_at
        == up.lifecycle.expires_at + HOUR / 2
    )


def test_capacity_block_with_unknown_end_blocks_extend(workspace, gang, up, extending):
    in_block(workspace, up, None)
    with pytest.raises(CloudError, match=f"the end of Capacity Block {BLOCK} is unknown"):
        extending.extend("demo", by=timedelta(minutes=1))
    assert workspace.records.cluster("demo").lifecycle.expires_at == up.lifecycle.expires_at


def test_extend_retags_only_resources_with_the_cluster_token(workspace, gang, make, up, extending):
    own = make.thing("volume", "vol-own", "us-east-1", {"cloudgpu:token": up.identity.token})
    other = make.thing("volume", "vol-other", "us-east-1", {"cloudgpu:token": "another"})
    workspace.cloud.orphans = [own, other]
    extending.extend("demo", by=HOUR)
    assert [call[1] for call in workspace.cloud.calls if call[0] == "retag"] == [("vol-own",)]


def test_extend_updates_ledger_and_record_before_the_nodes(workspace, gang, up, extending):
    """After a failure before the nodes, their timers are unchanged and the same command continues."""
    until = up.lifecycle.expires_at + HOUR
    seen = []

    def before_up(stack):
        seen.append(
            (row(workspace).expires_at, workspace.records.cluster("demo").lifecycle.expires_at, expiry_commands(gang))
        )
        raise CloudError("cannot reach ec2.us-east-1")

    workspace.cloud.before_up = before_up
    with pytest.raises(CloudError):
        extending.extend("demo", by=HOUR)
    assert seen == [(until, until, [])]
    assert workspace.records.cluster("demo").lifecycle.confirmed_expires_at == up.lifecycle.expires_at
    workspace.cloud.before_up = lambda stack: None
    # Repeating the interrupted command sets the same expiry instead of adding to it.
    assert extending.extend("demo", by=HOUR).record.lifecycle.expires_at == until
    assert workspace.records.cluster("demo").lifecycle.confirmed_expires_at is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ScriptedResult(stderr="sudo: a password is required\n", exit_code=1), "a password is required"),
        (ScriptedResult(stdout="cloudgpu: this node ends itself at 7\n"), "ends itself at 7"),
        (ScriptedResult(stdout=""), "exit code 0"),
    ],
)
def test_node_that_rejects_the_expiry_is_reported_and_others_updated(workspace, gang, up, extending, answer, why):
    extending.extend("demo", by=timedelta(minutes=1))
    first, second = gang.hosts.values()
    second.on("expiry", answer)
    before = workspace.records.cluster("demo").lifecycle.expires_at
    with pytest.raises(StateError, match="node 1") as caught:
        extending.extend("demo", by=timedelta(minutes=2))
    assert why in caught.value.message
    assert "--until" in caught.value.hint
    assert first.sent[-1].text.endswith(str(int((before + timedelta(minutes=2)).timestamp())))
    assert workspace.records.cluster("demo").lifecycle.confirmed_expires_at == before


@pytest.mark.parametrize("late", [timedelta(0), -HOUR])
def test_extend_to_an_earlier_time_is_rejected(workspace, gang, up, extending, late):
    with pytest.raises(UsageError, match="already") as caught:
        extending.extend("demo", until=up.lifecycle.expires_at + late)
    assert caught.value.hint == "run `cloudgpu down demo` to delete the cluster now"
    assert expiry_commands(gang) == []


def test_extend_enforces_recipe_budget_unless_max_usd_is_raised(workspace, gang, up, extending):
    with pytest.raises(BudgetError, match=r"costs up to 187\.28 USD, above budget\.max_usd 130 USD") as caught:
        extending.extend("demo", by=2 * HOUR)
    assert caught.value.hint == "extend the expiry by less, or raise the budget: --max-usd 187.28"
    assert row(workspace).expires_at == up.lifecycle.expires_at
    assert extending.extend("demo", by=2 * HOUR, max_usd=Decimal(200)).record.lifecycle.max_usd == "200"
    with pytest.raises(BudgetError, match=r"above budget\.max_usd 200 USD"):
        extending.extend("demo", by=HOUR)


def test_extend_is_limited_by_the_maximum_set_at_launch(workspace, gang, up, extending):
    latest = up.lifecycle.expires_at + EXTENDABLE
    with pytest.raises(UsageError, match="at most"):
        extending.extend("demo", until=latest + timedelta(seconds=1), max_usd=Decimal(10**6))
    extending.extend("demo", by=HOUR)
    assert extending.extend("demo", until=latest, max_usd=Decimal(10**6)).record.lifecycle.expires_at == latest


def test_extend_is_rejected_if_the_stack_preview_would_change_nodes(workspace, gang, up, extending):
    workspace.cloud.previewed = (PreviewStep("replace", "urn", "aws:ec2/fleet:Fleet", "gang"),)
    with pytest.raises(StateError, match="another version of cloudgpu: gang would change"):
        extending.extend("demo", by=HOUR)
    assert row(workspace).expires_at == up.lifecycle.expires_at
    assert workspace.records.cluster("demo") == up


@pytest.mark.parametrize("state", ["gone", "expired", "half", "lost nodes"])
def test_extend_requires_a_complete_running_cluster(workspace, gang, make, up, extending, state):
    if state == "gone":
        workspace.teardown.down("demo", "us-east-1")
    if state == "expired":
        workspace.clock.sleep(2 * 3600)
    if state == "half":
        workspace.records.save_cluster(up.in_state("making"), workspace.clock.now())
    if state == "lost nodes":
        workspace.cloud.alive["i-us-east-1c-0"] = "terminated"
    with pytest.raises((UsageError, StateError)):
        extending.extend("demo", by=HOUR)
    assert expiry_commands(gang) == []


def test_extend_command_and_confirmation_carry_an_epoch_time(up):
    assert extend_command(up.lifecycle.expires_at)[-1] == str(int(up.lifecycle.expires_at.timestamp()))
    assert (
        confirmed_expiry("Welcome!\ncloudgpu: this node ends itself at 1795237200\n").isoformat()
        == "2026-11-21T05:00:00+00:00"
    )
    assert confirmed_expiry("cloudgpu: this node ends itself at soon") is None


def test_extend_limit_matches_the_user_data_constant():
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[5] / "infra"))
    try:
        from gpu_cluster import user_data
    finally:
        sys.path.pop(0)
    assert user_data.EXTENDABLE == EXTENDABLE
