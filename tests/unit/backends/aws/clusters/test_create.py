"""`up`: candidates in order, all nodes or none, the ledger row before the launch, and one cluster per name."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from cloudgpu.backends.aws.clusters.create import reuse_cluster
from cloudgpu.backends.aws.clusters.launch_attempt import program_settings_for, record_with_candidate
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import (
    AuthError,
    BadRequestError,
    BusyError,
    CapacityError,
    LaunchError,
    NoCapacityError,
    PlanError,
    QuotaError,
    StateError,
    UsageError,
)
from cloudgpu.plan.plan import Finding

KEY = "ssh-ed25519 AAAA"


def at_candidate(record, plan, candidate, chosen=()):
    """Return the record of a launch of this candidate."""
    return record_with_candidate(record, plan, candidate, dict(chosen), public_key=KEY, ssh_cidr="192.0.2.1/32")


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def test_up_uses_first_candidate_with_capacity(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("no p3dn here", code="InsufficientInstanceCapacity")}
    cluster = workspace.provisioning.create(
        make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo"
    )
    assert ups(workspace) == ["us-east-1c", "us-east-1d"]
    assert cluster.made
    assert cluster.record.placement.zone == "us-east-1d"
    assert [node.instance_id for node in cluster.inventory.nodes] == ["i-us-east-1d-0", "i-us-east-1d-1"]
    assert cluster.tried == (
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity): no p3dn here",
    )


def test_up_waits_for_new_credentials_while_its_nodes_boot(workspace, make, monkeypatch):
    errors, real = [AuthError("credentials expired", hint="aws sso login --profile gpu") for _ in range(3)], {}
    for err in errors:
        err.renewable = True
    real["inventory"] = workspace.cloud.inventory

    def inventory(*arguments):
        if errors:
            raise errors.pop()
        return real["inventory"](*arguments)

    monkeypatch.setattr(workspace.cloud, "inventory", inventory)
    assert workspace.provisioning.create(make.plan(make.candidate()), "demo").made
    assert workspace.records.cluster("demo").state == "up"
    assert [note for note in workspace.notes if "aws sso login --profile gpu" in note]
    assert not [call for call in workspace.cloud.calls if call[0] == "destroy"]


@pytest.mark.parametrize(
    ("settings", "recipe", "expected"),
    [
        ("", {}, None),
        ('{"Team": "a", "Org": "b"}', {}, {"Team": "a", "Org": "b"}),
        ("", {"Team": "c"}, {"Team": "c"}),
        ('{"Team": "a", "Org": "b"}', {"team": "c"}, {"team": "c", "Org": "b"}),
    ],
)
def test_tags_of_the_recipe_and_the_settings_reach_the_program(workspace, make, settings, recipe, expected):
    plan = make.plan(make.candidate())
    plan = replace(plan, recipe=plan.recipe.model_copy(update={"tags": recipe}))
    requester = Requester("ann", "vision", KEY)
    record = new_record(workspace.cloud, plan, "demo", requester, "", workspace.clock.now())
    program_settings = program_settings_for(plan.recipe, {"tags": settings})
    config = at_candidate(record, plan, plan.candidates[0], program_settings).placement.config
    assert (json.loads(config["tags"]) if "tags" in config else None) == expected


def test_too_many_tags_together_are_an_error(workspace, make):
    plan = make.plan(make.candidate())
    plan = replace(plan, recipe=plan.recipe.model_copy(update={"tags": {f"a{index}": "" for index in range(20)}}))
    existing = {"tags": json.dumps({f"b{index}": "" for index in range(20)})}
    with pytest.raises(UsageError, match="the tags of the settings and the recipe: 40 tags"):
        program_settings_for(plan.recipe, existing)


def test_up_waits_for_capacity_block_start_before_recording(workspace, make):
    starts_at = workspace.clock.now() + timedelta(hours=5)
    plan = replace(make.plan(make.candidate("us-east-1c", market="capacity-block")), starts_at=starts_at)
    record = workspace.provisioning.create(plan, "demo").record
    assert starts_at <= record.identity.created_at < starts_at + timedelta(minutes=1)
    assert record.lifecycle.expires_at - record.identity.created_at > timedelta(minutes=59)
    assert any("waiting until" in note for note in workspace.notes)


def test_quota_error_skips_the_pool_but_not_other_regions(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": QuotaError("0 vCPUs allowed", code="VcpuLimitExceeded")}
    plan = make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d"), make.candidate("us-west-2a"))
    assert workspace.provisioning.create(plan, "demo").record.placement.zone == "us-west-2a"
    assert ups(workspace) == ["us-east-1c", "us-west-2a"]
    # The first region is emptied before the second is tried.
    assert workspace.cloud.calls.index(("destroy", "us-east-1", "")) < workspace.cloud.calls.index(
        ("up", "us-west-2", "us-west-2a")
    )


def test_missing_capacity_error_lists_all_attempts_and_leaves_nothing(workspace, make):
    zones = ("us-east-1c", "us-east-1d")
    workspace.cloud.refusals = {zone: CapacityError("none", code="InsufficientInstanceCapacity") for zone in zones}
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.create(make.plan(*map(make.candidate, zones)), "demo")
    assert [line.split()[0] for line in caught.value.tried] == list(zones)
    assert caught.value.exit_code == 4
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()
    assert workspace.ledger.report(by="cluster", now=workspace.clock.now()).simulated_usd == 0


def test_quota_error_is_reported_as_such_and_pool_skipped(workspace, make):
    limit = QuotaError("vCPU limit of 0", code="VcpuLimitExceeded", hint="ask for more vCPUs")
    workspace.cloud.refusals = {"us-east-1c": limit, "us-west-2a": CapacityError("none", code="Insufficient")}
    zones = ("us-east-1c", "us-east-1d", "us-west-2a")
    with pytest.raises(NoCapacityError) as caught:
        workspace.provisioning.create(make.plan(*map(make.candidate, zones)), "demo")
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


def test_ledger_row_and_record_are_written_before_launch(workspace, make):
    seen = []
    workspace.cloud.before_up = lambda stack: seen.append(
        (len(workspace.ledger.entries(state="open")), workspace.records.cluster("demo").placement.zone)
    )
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    assert seen == [(1, "us-east-1c")]


def test_second_up_reuses_cluster_token_and_expiry(workspace, make):
    plan = make.plan(make.candidate())
    first = workspace.provisioning.create(plan, "demo").record
    workspace.clock.sleep(600)
    second = workspace.provisioning.create(plan, "demo")
    assert not second.made
    assert (second.record.identity.token, second.record.lifecycle.expires_at) == (
        first.identity.token,
        first.lifecycle.expires_at,
    )
    assert len(workspace.ledger.entries()) == 1


def test_up_after_kill_continues_with_same_token_and_expiry(workspace, make):
    class Killed(BaseException):
        pass

    def die(stack):
        raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
    killed = workspace.records.cluster("demo")
    workspace.cloud.before_up = lambda stack: None
    workspace.clock.sleep(60)
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    assert (record.identity.token, record.lifecycle.expires_at) == (killed.identity.token, killed.lifecycle.expires_at)
    assert len(workspace.ledger.entries()) == 1


@pytest.mark.parametrize(("existing", "named"), [({"kmsKeyId": "key-1"}, "key-1"), ({}, "get-ebs-default-kms-key-id")])
def test_launch_that_fails_for_the_disks_key_stops_and_names_the_key(workspace, make, existing, named):
    refused = LaunchError("instance i-1 terminated: Client error on launch", code="Client.InternalError", hint="policy")
    workspace.cloud.refusals = {"us-east-1c": refused}
    workspace.cloud.program_settings = existing
    zones = ("us-east-1c", "us-east-1d")
    with pytest.raises(LaunchError) as caught:
        workspace.provisioning.create(make.plan(*map(make.candidate, zones)), "demo")
    assert named in caught.value.message
    assert ups(workspace) == ["us-east-1c"]
    assert workspace.records.clusters() == []


def test_bad_request_stops_immediately_and_leaves_nothing(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": BadRequestError("no such subnet", code="InvalidSubnetID.NotFound")}
    with pytest.raises(BadRequestError):
        workspace.provisioning.create(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(workspace) == ["us-east-1c"]
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_plan_with_error_finding_is_not_applied(workspace, make):
    plan = make.plan(make.candidate(), findings=[Finding("retired", "error", "p3.16xlarge is retired")])
    with pytest.raises(PlanError):
        workspace.provisioning.create(plan, "demo")
    assert workspace.cloud.calls == []
    assert workspace.records.clusters() == []


def test_busy_error_names_the_lease_holder(workspace, make):
    lease = ClusterLease(workspace.home.cluster("demo").root / "lease", workspace.clock, "bob")
    with lease.hold(), pytest.raises(BusyError, match="bob"):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")
    assert workspace.cloud.calls == []


def test_cluster_of_another_shape_is_rejected(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    with pytest.raises(UsageError, match=r"2 x p3dn\.24xlarge, not the 4 x"):
        workspace.provisioning.create(make.plan(make.candidate(), nodes=4), "demo")


def test_expired_cluster_is_not_reused(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.clock.sleep(timedelta(hours=2).total_seconds())
    with pytest.raises(UsageError, match="expired"):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")


def test_cluster_with_lost_node_is_not_reused(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    with pytest.raises(StateError, match="i-us-east-1c-1 is terminated"):
        reuse_cluster(workspace.context, "demo", make.plan(make.candidate()))


def test_cluster_of_another_account_is_an_error(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="account 111122223333"):
        workspace.provisioning.create(make.plan(make.candidate()), "demo")


def test_resumed_attempt_keeps_the_image_of_its_first_launch(workspace, make):
    parameter = "/aws/service/canonical/ubuntu"
    first = replace(make.candidate(), image="ami-1", image_parameter=parameter)
    newer, elsewhere = replace(first, image="ami-2"), replace(first, image="ami-2", region="us-west-2")
    another = replace(first, image="ami-3", image_parameter="/another")
    plan = make.plan(first)
    record = at_candidate(workspace.provisioning._new_record(plan, "demo", ""), plan, first)
    images = [
        at_candidate(record, plan, candidate).placement.config["image"] for candidate in (newer, elsewhere, another)
    ]
    assert (record.placement.config["image"], images) == ("ami-1", ["ami-1", "ami-2", "ami-3"])


def uploading(make, to="s3://bucket/runs/{run}", **sections):
    return make.plan(make.candidate(), checkpoint={"path": "ckpt", "to": to}, **sections)


def writable(workspace, name="demo"):
    return workspace.records.cluster(name).placement.config.get("writable", "")


def test_cluster_of_one_run_may_upload_only_this_run(workspace, make):
    workspace.provisioning.create(uploading(make), "demo", run_id="quickstart-k3fz8w")
    assert writable(workspace) == '["bucket/runs/quickstart-k3fz8w"]'


def test_cluster_of_up_may_upload_any_run_and_nothing_beside_it(workspace, make):
    workspace.provisioning.create(uploading(make, "s3://bucket/run-{run}/ckpt"), "demo")
    assert writable(workspace) == '[["bucket/run-", "/ckpt"]]'


def test_another_run_on_a_cluster_may_upload_too(workspace, make):
    workspace.provisioning.create(uploading(make), "demo", run_id="quickstart-k3fz8w")
    workspace.cloud.calls.clear()
    reuse_cluster(workspace.context, "demo", uploading(make))
    assert writable(workspace) == '["bucket/runs/quickstart-k3fz8w", ["bucket/runs/", ""]]'
    assert workspace.cloud.calls == [("up", "us-east-1", "us-east-1c")]
    assert workspace.notes[-1] == ("allowing the nodes of cluster demo to access the S3 locations of recipe quickstart")
    workspace.cloud.calls.clear()
    reuse_cluster(workspace.context, "demo", uploading(make))
    assert workspace.cloud.calls == []


def test_run_that_continues_the_cluster_of_an_interrupted_run_may_upload(workspace, make):
    plan = uploading(make)
    record = workspace.provisioning._new_record(plan, "demo", "quickstart-k3fz8w")
    workspace.records.save_cluster(record, workspace.clock.now())
    workspace.provisioning.create(plan, "demo", run_id="quickstart-zzzzzz")
    assert '["bucket/runs/", ""]' in writable(workspace)


@pytest.mark.parametrize("setting", ["roleName", "instanceProfile"])
def test_role_of_the_user_is_not_changed_for_another_run(workspace, make, setting):
    workspace.provisioning.create(uploading(make), "demo", run_id="quickstart-k3fz8w")
    record = workspace.records.cluster("demo")
    config = {**record.placement.config, setting: "own"}
    record = replace(record, placement=replace(record.placement, config=config))
    workspace.records.save_cluster(record, workspace.clock.now())
    workspace.cloud.calls.clear()
    reuse_cluster(workspace.context, "demo", uploading(make))
    assert workspace.cloud.calls == []


def test_interrupted_cluster_of_an_earlier_version_keeps_how_its_nodes_are_launched(workspace, make):
    plan = make.plan(make.replace(make.candidate(instance_type="p4d.24xlarge"), efa_interfaces=4))
    record = workspace.provisioning.create(plan, "demo").record
    launched = record.placement.config
    assert (launched["efaLayout"], launched["tagsInCall"]) == ("separate", "true")
    earlier = {name: value for name, value in launched.items() if name not in ("efaLayout", "tagsInCall")}
    interrupted = replace(record, placement=replace(record.placement, config=earlier))
    again = at_candidate(interrupted, plan, plan.candidates[0])
    assert again.placement.config["efaLayout"] == "combined"
    assert "tagsInCall" not in again.placement.config
