"""`extend`: every place that knows the expiry moves, in an order in which a crash leaves no node without an end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.aws.clusters.extend import ClusterExtender
from cloudgpu.engine.base import PreviewStep
from cloudgpu.errors import BudgetError, CloudError, StateError, UsageError
from cloudgpu.node.expiry import EXTENDABLE, confirmed_expiry, extend_command
from cloudgpu.plan.reservations import Reservation, ReservationLookup
from cloudgpu.ssh.fake import ScriptedResult

HOUR = timedelta(hours=1)
START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def up(workspace, make):
    """A cluster for an hour, with a budget for two."""
    plan = make.plan(make.candidate(), budget={"max_usd": 130, "expiry": "1h"})
    return workspace.provisioning.up(plan, "demo").record


@pytest.fixture
def extending(workspace, gang):
    return ClusterExtender(workspace.context, gang.connect)


def row(workspace):
    (found,) = workspace.ledger.entries(cluster="demo")
    return found.spending


def told(gang):
    """What each node was told, in its order."""
    return [sent.wire for host in gang.hosts.values() for sent in host.sent if "expiry" in sent.wire]


def test_everything_that_knows_the_expiry_moves(workspace, gang, up, extending):
    workspace.cloud.orphans = []
    workspace.clock.sleep(600)
    done = extending.extend("demo", by=HOUR)
    until = up.expires_at + HOUR
    assert (done.before, done.record.expires_at) == (up.expires_at, until)
    assert done.worst_case_usd == Decimal("124.85")
    stored = workspace.records.cluster("demo")
    assert (stored.expires_at, stored.confirmed_expires_at, stored.first_expires_at) == (until, None, up.expires_at)
    assert stored.config["expiresAt"] == f"{until:%Y-%m-%dT%H:%M:%SZ}"
    assert row(workspace).expires_at == until
    assert workspace.cloud.calls[-2:] == [
        ("up", "us-east-1", "us-east-1c"),
        ("retag", (), {"cloudgpu:expires-at": stored.config["expiresAt"]}),
    ]
    assert len(told(gang)) == 2
    assert all(wire.endswith(str(int(until.timestamp()))) for wire in told(gang))


BLOCK = "cr-0123456789abcdef0"


def in_block(workspace, record, ends_at):
    """The cluster as one that was launched into a Capacity Block, which ends then; None where AWS has none."""
    found = ends_at and Reservation(
        BLOCK, "capacity-block", "us-east-1", "us-east-1c", "p4d.24xlarge", "active", 0, START, ends_at
    )
    workspace.cloud.reservation = lambda wanted, regions: ReservationLookup(found, workspace.clock.now())
    config = {**record.config, "reservation": BLOCK}
    workspace.records.save_cluster(replace(record, market="capacity-block", config=config), workspace.clock.now())


def test_nobody_lives_longer_than_its_capacity_block(workspace, gang, up, extending):
    in_block(workspace, up, up.expires_at + HOUR)
    workspace.cloud.calls.clear()
    with pytest.raises(UsageError, match=r"ends at 2026-11-21 14:00 UTC, and AWS reclaims its nodes from .* 13:30 UTC"):
        extending.extend("demo", by=timedelta(minutes=31))
    assert workspace.cloud.calls == []
    assert workspace.records.cluster("demo").expires_at == up.expires_at
    assert extending.extend("demo", by=timedelta(minutes=30)).record.expires_at == up.expires_at + HOUR / 2


def test_a_capacity_block_that_cannot_be_looked_at_extends_nothing(workspace, gang, up, extending):
    in_block(workspace, up, None)
    with pytest.raises(CloudError, match=f"the end of Capacity Block {BLOCK} is unknown"):
        extending.extend("demo", by=timedelta(minutes=1))
    assert workspace.records.cluster("demo").expires_at == up.expires_at


def test_only_things_of_this_very_cluster_are_tagged_anew(workspace, gang, make, up, extending):
    own = make.thing("volume", "vol-own", "us-east-1", {"cloudgpu:token": up.token})
    other = make.thing("volume", "vol-other", "us-east-1", {"cloudgpu:token": "another"})
    workspace.cloud.orphans = [own, other]
    extending.extend("demo", by=HOUR)
    assert [call[1] for call in workspace.cloud.calls if call[0] == "retag"] == [("vol-own",)]


def test_the_books_come_first_and_the_nodes_last(workspace, gang, up, extending):
    """Whatever breaks before the nodes, their timers are the old ones, and the same command goes on."""
    until = up.expires_at + HOUR
    seen = []

    def before_up(stack):
        seen.append((row(workspace).expires_at, workspace.records.cluster("demo").expires_at, told(gang)))
        raise CloudError("cannot reach ec2.us-east-1")

    workspace.cloud.before_up = before_up
    with pytest.raises(CloudError):
        extending.extend("demo", by=HOUR)
    assert seen == [(until, until, [])]
    assert workspace.records.cluster("demo").confirmed_expires_at == up.expires_at
    workspace.cloud.before_up = lambda stack: None
    # The same words mean the same moment: what was broken off is not added to.
    assert extending.extend("demo", by=HOUR).record.expires_at == until
    assert workspace.records.cluster("demo").confirmed_expires_at is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ScriptedResult(stderr="sudo: a password is required\n", exit_code=1), "a password is required"),
        (ScriptedResult(stdout="cloudgpu: this node ends itself at 7\n"), "ends itself at 7"),
        (ScriptedResult(stdout=""), "exit code 0"),
    ],
)
def test_a_node_that_does_not_take_it_is_named_and_the_others_have_it(workspace, gang, up, extending, answer, why):
    extending.extend("demo", by=timedelta(minutes=1))
    first, second = gang.hosts.values()
    second.on("expiry", answer)
    before = workspace.records.cluster("demo").expires_at
    with pytest.raises(StateError, match="node 1") as caught:
        extending.extend("demo", by=timedelta(minutes=2))
    assert why in caught.value.message
    assert "--until" in caught.value.hint
    assert first.sent[-1].wire.endswith(str(int((before + timedelta(minutes=2)).timestamp())))
    assert workspace.records.cluster("demo").confirmed_expires_at == before


@pytest.mark.parametrize("late", [timedelta(0), -HOUR])
def test_earlier_is_no_extension(workspace, gang, up, extending, late):
    with pytest.raises(UsageError, match="already") as caught:
        extending.extend("demo", until=up.expires_at + late)
    assert caught.value.hint == "run `cloudgpu down demo` to delete the cluster now"
    assert told(gang) == []


def test_the_recipes_budget_still_holds_until_another_one_is_named(workspace, gang, up, extending):
    with pytest.raises(BudgetError, match=r"costs up to 187\.28 USD, above budget\.max_usd 130 USD") as caught:
        extending.extend("demo", by=2 * HOUR)
    assert caught.value.hint == "extend the expiry by less, or raise the budget: --max-usd 187.28"
    assert row(workspace).expires_at == up.expires_at
    assert extending.extend("demo", by=2 * HOUR, max_usd=Decimal(200)).record.max_usd == "200"
    with pytest.raises(BudgetError, match=r"above budget\.max_usd 200 USD"):
        extending.extend("demo", by=HOUR)


def test_no_node_lives_longer_than_its_launch_allows(workspace, gang, up, extending):
    latest = up.expires_at + EXTENDABLE
    with pytest.raises(UsageError, match="at most"):
        extending.extend("demo", until=latest + timedelta(seconds=1), max_usd=Decimal(10**6))
    extending.extend("demo", by=HOUR)
    assert extending.extend("demo", until=latest, max_usd=Decimal(10**6)).record.expires_at == latest


def test_a_newer_program_changes_nothing_under_a_living_cluster(workspace, gang, up, extending):
    workspace.cloud.previewed = (PreviewStep("replace", "urn", "aws:ec2/fleet:Fleet", "gang"),)
    with pytest.raises(StateError, match="another version of cloudgpu: gang would change"):
        extending.extend("demo", by=HOUR)
    assert row(workspace).expires_at == up.expires_at
    assert workspace.records.cluster("demo") == up


@pytest.mark.parametrize("state", ["gone", "expired", "half", "lost nodes"])
def test_only_a_whole_cluster_that_is_up_is_extended(workspace, gang, make, up, extending, state):
    if state == "gone":
        workspace.teardown.down("demo", "us-east-1")
    if state == "expired":
        workspace.clock.sleep(2 * 3600)
    if state == "half":
        workspace.records.save_cluster(make.replace(up, state="making"), workspace.clock.now())
    if state == "lost nodes":
        workspace.cloud.alive["i-us-east-1c-0"] = "terminated"
    with pytest.raises((UsageError, StateError)):
        extending.extend("demo", by=HOUR)
    assert told(gang) == []


def test_the_command_quotes_nothing_but_a_number(up):
    assert extend_command(up.expires_at)[-1] == str(int(up.expires_at.timestamp()))
    assert (
        confirmed_expiry("Welcome!\ncloudgpu: this node ends itself at 1795237200\n").isoformat()
        == "2026-11-21T05:00:00+00:00"
    )
    assert confirmed_expiry("cloudgpu: this node ends itself at soon") is None


def test_the_bound_is_the_one_in_the_user_data():
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[5] / "infra"))
    try:
        from gpu_cluster import user_data
    finally:
        sys.path.pop(0)
    assert user_data.EXTENDABLE == EXTENDABLE
