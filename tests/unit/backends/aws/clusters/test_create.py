"""`up`: candidates in order, gang or nothing, the ledger before the call, and no second cluster of one name."""

from dataclasses import replace
from datetime import timedelta

import pytest

from cloudgpu.backends.lifecycle.launch_request import Requester, record_with_candidate
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import (
    BadRequestError,
    BusyError,
    CapacityError,
    NoCapacityError,
    PlanError,
    QuotaError,
    StateError,
    UsageError,
)
from cloudgpu.plan.plan import Finding


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def test_up_takes_the_first_candidate_that_has_capacity(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("no p3dn here", code="InsufficientInstanceCapacity")}
    standing = workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(workspace) == ["us-east-1c", "us-east-1d"]
    assert standing.made
    assert standing.record.zone == "us-east-1d"
    assert [node.instance_id for node in standing.inventory.nodes] == ["i-us-east-1d-0", "i-us-east-1d-1"]
    assert standing.tried == (
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity): no p3dn here",
    )


def test_what_is_reserved_for_later_is_waited_for_before_anything_is_written(workspace, make):
    starts_at = workspace.clock.now() + timedelta(hours=5)
    plan = replace(make.plan(make.candidate("us-east-1c", market="capacity-block")), starts_at=starts_at)
    record = workspace.provisioning.up(plan, "demo").record
    assert starts_at <= record.created_at < starts_at + timedelta(minutes=1)
    assert record.expires_at - record.created_at > timedelta(minutes=59)
    assert any("waiting until" in note for note in workspace.notes)


def test_a_quota_skips_every_zone_of_the_pool_but_not_another_region(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("0 vCPUs allowed", code="VcpuLimitExceeded")}
    plan = make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d"), make.candidate("us-west-2a"))
    assert workspace.provisioning.up(plan, "demo").record.zone == "us-west-2a"
    assert ups(workspace) == ["us-east-1c", "us-west-2a"]
    # The first region is emptied before the second is tried.
    assert workspace.cloud.calls.index(("destroy", "us-east-1", "")) < workspace.cloud.calls.index(
        ("up", "us-west-2", "us-west-2a")
    )


def test_no_capacity_anywhere_names_every_try_and_leaves_nothing(workspace, make):
    zones = ("us-east-1c", "us-east-1d")
    workspace.cloud.refusals = {zone: CapacityError("none", code="InsufficientInstanceCapacity") for zone in zones}
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.up(make.plan(*map(make.candidate, zones)), "demo")
    assert [line.split()[0] for line in caught.value.tried] == list(zones)
    assert caught.value.exit_code == 4
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()
    assert workspace.ledger.report(by="cluster", now=workspace.clock.now()).simulated_usd == 0


def test_a_quota_that_binds_is_told_as_such_and_its_pool_not_asked_twice(workspace, make):
    limit = QuotaError("vCPU limit of 0", code="VcpuLimitExceeded", hint="ask for more vCPUs")
    workspace.cloud.refusals = {"us-east-1c": limit, "us-west-2a": CapacityError("none", code="Insufficient")}
    zones = ("us-east-1c", "us-east-1d", "us-west-2a")
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.up(make.plan(*map(make.candidate, zones)), "demo")
    assert caught.value.message == (
        "2 x p3dn.24xlarge not available: the account's quota is too low (on-demand in us-east-1); "
        "no capacity (1 of 3 candidates)"
    )
    assert caught.value.hint == (
        "request at least 192 vCPUs of Running On-Demand P instances (L-417A185B) in us-east-1: "
        "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-417A185B; "
        "or --set resources.market=spot; or --set resources.regions=us-east-1,us-west-2,eu-west-1,ap-northeast-1; "
        "or --set resources.instance_type=g7.48xlarge; or wait for capacity with --retry-until-up"
    )
    assert [line.split()[0] for line in caught.value.tried] == ["us-east-1c", "us-west-2a"]


def test_the_ledger_row_and_the_record_stand_before_the_call(workspace, make):
    seen = []
    workspace.cloud.before_up = lambda stack: seen.append(
        (len(workspace.ledger.entries(state="open")), workspace.records.cluster("demo").zone)
    )
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    assert seen == [(1, "us-east-1c")]


def test_up_twice_is_one_cluster_with_its_first_token_and_expiry(workspace, make):
    plan = make.plan(make.candidate())
    first = workspace.provisioning.up(plan, "demo").record
    workspace.clock.sleep(600)
    second = workspace.provisioning.up(plan, "demo")
    assert not second.made
    assert (second.record.token, second.record.expires_at) == (first.token, first.expires_at)
    assert len(workspace.ledger.entries()) == 1


def test_a_killed_up_goes_on_with_the_same_token_and_expiry(workspace, make):
    class Killed(BaseException):
        pass

    def die(stack):
        raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        workspace.provisioning.up(make.plan(make.candidate()), "demo")
    killed = workspace.records.cluster("demo")
    workspace.cloud.before_up = lambda stack: None
    workspace.clock.sleep(60)
    record = workspace.provisioning.up(make.plan(make.candidate()), "demo").record
    assert (record.token, record.expires_at) == (killed.token, killed.expires_at)
    assert len(workspace.ledger.entries()) == 1


def test_bad_requests_stop_at_once_and_leave_nothing(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": BadRequestError("no such subnet", code="InvalidSubnetID.NotFound")}
    with pytest.raises(BadRequestError):
        workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(workspace) == ["us-east-1c"]
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_a_plan_with_an_error_finding_is_never_applied(workspace, make):
    plan = make.plan(make.candidate(), findings=[Finding("retired", "error", "p3.16xlarge is retired")])
    with pytest.raises(PlanError):
        workspace.provisioning.up(plan, "demo")
    assert workspace.cloud.calls == []
    assert workspace.records.clusters() == []


def test_another_process_at_the_cluster_is_named(workspace, make):
    lease = ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob")
    with lease.hold(), pytest.raises(BusyError, match="bob"):
        workspace.provisioning.up(make.plan(make.candidate()), "demo")
    assert workspace.cloud.calls == []


def test_a_cluster_of_another_shape_is_refused(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    with pytest.raises(UsageError, match=r"2 x p3dn\.24xlarge, not the 4 x"):
        workspace.provisioning.up(make.plan(make.candidate(), nodes=4), "demo")


def test_an_expired_cluster_is_not_taken_for_a_living_one(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.clock.sleep(timedelta(hours=2).total_seconds())
    with pytest.raises(UsageError, match="expired"):
        workspace.provisioning.up(make.plan(make.candidate()), "demo")


def test_a_cluster_that_lost_a_node_is_not_reused(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    with pytest.raises(StateError, match="i-us-east-1c-1 is terminated"):
        workspace.provisioning.reuse("demo", make.plan(make.candidate()))


def test_another_account_is_an_error_never_a_fresh_start(workspace, make):
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    workspace.cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="account 111122223333"):
        workspace.provisioning.up(make.plan(make.candidate()), "demo")


def test_an_attempt_that_was_cut_off_goes_on_with_the_image_that_it_began_with(workspace, make):
    parameter = "/aws/service/canonical/ubuntu"
    first = replace(make.candidate(), image="ami-1", image_parameter=parameter)
    newer, elsewhere = replace(first, image="ami-2"), replace(first, image="ami-2", region="us-west-2")
    another = replace(first, image="ami-3", image_parameter="/another")
    requester = Requester("ann", "vision", "ssh-ed25519 AAAA", {})
    plan = make.plan(first)
    begun = record_with_candidate(
        workspace.provisioning._new_record(plan, "demo", ""), plan, first, requester, "192.0.2.1/32"
    )
    images = [
        record_with_candidate(begun, plan, one, requester, "192.0.2.1/32").config["image"]
        for one in (newer, elsewhere, another)
    ]
    assert (begun.config["image"], images) == ("ami-1", ["ami-1", "ami-2", "ami-3"])
