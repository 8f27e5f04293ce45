"""Failover between candidates: immediate, in plan order, billed correctly, with one progress line per attempt."""

import pytest

from cloudgpu.engine.base import Event
from cloudgpu.errors import CapacityError, LaunchError, NoCapacityError, NotOfferedError, QuotaError

ZONES = ("us-east-1c", "us-east-1d", "us-west-2b")


def dry(code="InsufficientInstanceCapacity"):
    return CapacityError(f"launching 2 instances: none ({code})", code=code)


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def test_next_candidate_is_tried_without_waiting(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": dry(), "us-east-1d": dry()}
    workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert ups(workspace) == list(ZONES)
    assert workspace.clock.monotonic() == 0


def test_nothing_is_deleted_between_zones_of_one_region(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": dry()}
    workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert [kind for kind, _, _ in workspace.cloud.calls] == ["up", "up"]


def test_each_launch_attempt_emits_one_line(workspace, make):
    refused = "launching 2 instances: none (InsufficientInstanceCapacity)"

    def refuse(stack):
        if stack.config["zone"] == "us-east-1c":
            fleet = Event("failed", "create", "urn", "aws:ec2/fleet:Fleet", "s1", refused)
            workspace.cloud.on_event(fleet)

    workspace.cloud.before_up = refuse
    workspace.cloud.refusals = {"us-east-1c": dry()}
    workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert workspace.notes[:3] == [
        "trying us-east-1c p3dn.24xlarge on-demand: 2 x $31.212/h",
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity)",
        "trying us-east-1d p3dn.24xlarge on-demand: 2 x $31.212/h",
    ]
    assert not [event for event in workspace.heard if isinstance(event, Event)]


def test_fatal_launch_error_is_reported_in_the_words_of_aws(workspace, make):
    workspace.cloud.before_up = lambda stack: workspace.cloud.on_event(
        Event("failed", "create", "urn", "aws:ec2/fleet:Fleet", "s1", "no such snapshot")
    )
    workspace.cloud.refusals = {"us-east-1c": LaunchError("no such snapshot", code="Client.InvalidSnapshot.NotFound")}
    with pytest.raises(LaunchError):
        workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert [event.detail for event in workspace.heard if isinstance(event, Event)] == ["no such snapshot"]
    assert ups(workspace) == ["us-east-1c"]
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_fleet_limit_skips_the_rest_of_the_region(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("too many fleets", code="MaxFleetCountExceeded")}
    spot = make.candidate("us-east-1d", market="spot")
    workspace.provisioning.create(make.plan(make.candidate(), spot, make.candidate("us-west-2b")), "demo")
    assert ups(workspace) == ["us-east-1c", "us-west-2b"]


def test_spot_quota_error_leaves_on_demand_pool_usable(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("spot quota", code="MaxSpotInstanceCountExceeded")}
    spot = [make.candidate(zone, market="spot") for zone in ("us-east-1c", "us-east-1d")]
    workspace.provisioning.create(make.plan(*spot, make.candidate("us-east-1e")), "demo")
    assert ups(workspace) == ["us-east-1c", "us-east-1e"]


def test_skipped_candidate_is_reported_with_its_reason(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("limit", code="VcpuLimitExceeded")}
    workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert workspace.notes[1:3] == [
        "us-east-1c p3dn.24xlarge on-demand: quota reached (VcpuLimitExceeded)",
        "skipped, same quota: us-east-1d p3dn.24xlarge on-demand",
    ]


def test_no_capacity_hint_suggests_another_instance_type(workspace, make):
    workspace.cloud.refusals = dict.fromkeys(ZONES, dry())
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert caught.value.hint == (
        "--set resources.market=spot; or --set resources.regions=us-east-1,us-west-2,eu-west-1,ap-northeast-1; "
        "or --set resources.instance_type=p4d.24xlarge; or wait for capacity with --retry-until-up"
    )


def test_account_wide_quota_error_stops_the_launch(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("roles", code="LimitExceeded", hint="delete some")}
    with pytest.raises(QuotaError, match="roles"):
        workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    assert ups(workspace) == ["us-east-1c"]


def test_retired_type_is_tried_once_before_another_type(workspace, make):
    retired = NotOfferedError("no such type", code="InvalidInstanceType", hint="AWS has retired this type")
    workspace.cloud.refusals = {"us-east-1c": retired}
    other = make.candidate("us-east-1d", instance_type="p4d.24xlarge")
    workspace.provisioning.create(make.plan(make.candidate("us-east-1c"), make.candidate("us-west-2b"), other), "demo")
    assert ups(workspace) == ["us-east-1c", "us-east-1d"]


def test_retired_type_alone_fails_immediately_as_retired(workspace, make):
    retired = NotOfferedError("no such type", code="InvalidInstanceType", hint="AWS has retired this type")
    workspace.cloud.refusals = dict.fromkeys(ZONES, retired)
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo", retry_s=3600)
    assert ups(workspace) == ["us-east-1c"]
    assert caught.value.hint.startswith("AWS has retired this type; or --set resources.market=spot")
    assert "--retry-until-up" not in caught.value.hint
    assert workspace.clock.monotonic() == 0


def test_partially_launched_gang_is_billed(workspace, make):
    part = dry()
    part.launched = ("i-half",)
    workspace.cloud.refusals = {"us-east-1c": part}
    workspace.cloud.before_up = lambda stack: workspace.clock.sleep(90)
    workspace.provisioning.create(make.plan(*map(make.candidate, ZONES)), "demo")
    first, second = workspace.ledger.entries(cluster="demo")
    assert (first.state, first.instance_ids) == ("closed", ("i-half",))
    assert (first.closed_at - first.launched_at).total_seconds() == 90
    assert (second.state, second.instance_ids) == ("open", ("i-us-east-1d-0", "i-us-east-1d-1"))
