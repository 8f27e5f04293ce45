"""`--retry-until-up`: rounds with growing pauses, no resources in between, and a time limit."""

from datetime import timedelta

import pytest

from cloudgpu.backends.aws.clusters.create import CapacityRetry
from cloudgpu.errors import BadRequestError, CapacityError, NoCapacityError, QuotaError
from cloudgpu.plan.plan import Finding

HOUR_S = 3600


def dry():
    return CapacityError("none", code="InsufficientInstanceCapacity")


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def waits(workspace):
    return [note for note in workspace.notes if "Ctrl-C" in note]


def capacity_after(workspace, rounds, zone="us-east-1c"):
    """Let the zone have no capacity for this many attempts."""
    seen = []

    def before(stack):
        if stack.config["zone"] == zone:
            seen.append(workspace.records.cluster("demo"))
            workspace.cloud.refusals = {zone: dry()} if len(seen) <= rounds else {}

    workspace.cloud.before_up = before
    return seen


def test_launch_is_retried_until_capacity_is_available(workspace, make):
    records = capacity_after(workspace, 3)
    cluster = workspace.provisioning.create(make.plan(make.candidate()), "demo", retry_s=HOUR_S)
    assert cluster.made
    assert len(ups(workspace)) == 4
    assert len(waits(workspace)) == 3
    assert 30 * 0.8 + 48 * 0.8 + 76.8 * 0.8 <= workspace.clock.monotonic() <= 1.2 * (30 + 48 + 76.8)
    # For a day, AWS answers a repeated token with the first error.
    assert len({record.identity.token for record in records}) == 4


def test_waiting_reduces_neither_expiry_nor_worst_case_cost(workspace, make):
    capacity_after(workspace, 8)
    plan = make.plan(make.candidate(), expiry_s=600)
    record = workspace.provisioning.create(plan, "demo", retry_s=2 * HOUR_S).record
    assert workspace.clock.monotonic() > 600
    assert (
        timedelta(0)
        <= timedelta(seconds=600) - (record.lifecycle.expires_at - workspace.clock.now())
        < timedelta(seconds=1)
    )
    entries = workspace.ledger.entries(cluster="demo")
    assert [entry.state for entry in entries] == ["closed"] * 8 + ["open"]
    assert all(entry.launched_at is None for entry in entries[:-1])
    worst = entries[-1].spending
    assert worst.node_hourly_usd * worst.nodes * 600 / 3600 <= plan.worst_case_usd


def test_no_resources_exist_between_retry_rounds(workspace, make):
    capacity_after(workspace, 2)
    seen = []
    sleep = workspace.clock.sleep

    def look(seconds):
        seen.append(
            (workspace.records.clusters(), workspace.ledger.entries(state="open"), workspace.cloud.calls[-1][0])
        )
        sleep(seconds)

    workspace.clock.sleep = look
    workspace.provisioning.create(make.plan(make.candidate()), "demo", retry_s=HOUR_S)
    assert seen == [([], (), "destroy")] * 2


def test_pause_message_states_next_round_and_retry_limit(workspace, make):
    capacity_after(workspace, 1)
    context = workspace.context
    rounds = CapacityRetry(context, HOUR_S, jitter=lambda: 0.5)
    attempts = iter([NoCapacityError("none", passing=True), None])

    def attempt():
        err = next(attempts)
        if err is not None:
            raise err
        return "cluster"

    assert rounds.until_up(attempt) == "cluster"
    assert workspace.notes == [
        "no capacity in round 1; nothing is running or billed. Round 2 starts in 30 s, at 12:00:30 UTC. "
        "Retries end at 2026-11-21 13:00 UTC; press Ctrl-C to stop"
    ]


def test_retries_end_at_limit_and_report_rounds_and_duration(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": dry()}
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.create(make.plan(make.candidate()), "demo", retry_s=HOUR_S)
    assert workspace.clock.monotonic() == pytest.approx(HOUR_S, abs=1)
    rounds = len(ups(workspace))
    assert 12 < rounds < 25
    assert caught.value.message.endswith(f" after {rounds} rounds in 1h")
    assert caught.value.tried == (
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity): none",
    )
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_launch_without_retry_option_has_one_round(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": dry()}
    with pytest.raises(NoCapacityError, match=r"no capacity \(1 of 1 candidate\)$"):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
    assert len(ups(workspace)) == 1


@pytest.mark.parametrize(
    "err", [QuotaError("limit", code="VcpuLimitExceeded"), BadRequestError("bad", code="InvalidSubnetID.NotFound")]
)
def test_permanent_launch_errors_are_not_retried(workspace, make, err):
    workspace.cloud.refusals = {"us-east-1c": err}
    with pytest.raises((NoCapacityError, BadRequestError)):
        workspace.provisioning.create(make.plan(make.candidate()), "demo", retry_s=HOUR_S)
    assert workspace.clock.monotonic() == 0


def test_ctrl_c_between_rounds_leaves_nothing(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": dry()}

    def interrupted(seconds):
        raise KeyboardInterrupt

    workspace.clock.sleep = interrupted
    with pytest.raises(KeyboardInterrupt):
        workspace.provisioning.create(make.plan(make.candidate()), "demo", retry_s=HOUR_S)
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()
    assert [kind for kind, _, _ in workspace.cloud.calls] == ["up", "destroy"]
    assert not workspace.home.cluster("demo").lease.exists()


def test_plan_with_errors_is_not_retried(workspace, make):
    plan = make.plan(make.candidate(), findings=[Finding("retired", "error", "gone")])
    with pytest.raises(Exception, match="cannot be applied"):
        workspace.provisioning.create(plan, "demo", retry_s=HOUR_S)
    assert workspace.cloud.calls == []
