"""Reuse of a running or partially created cluster, only with its existing configuration."""

import pytest

from cloudgpu.backends.aws.clusters.create import reuse_cluster
from cloudgpu.engine.base import PreviewStep
from cloudgpu.errors import ConnectError, UsageError
from tests.cluster_records import changed


class Killed(BaseException):
    pass


def killed_up(workspace, make, *zones, **plan):
    def die(stack):
        if stack.config["zone"] == zones[-1]:
            raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        workspace.provisioning.create(make.plan(*map(make.candidate, zones), **plan), "demo")
    workspace.cloud.before_up = lambda stack: None


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def test_up_after_kill_continues_with_the_same_candidate(workspace, make):
    from cloudgpu.errors import CapacityError

    workspace.cloud.refusals = {"us-east-1c": CapacityError("none")}
    killed_up(workspace, make, "us-east-1c", "us-east-1d")
    workspace.cloud.refusals = {}
    workspace.cloud.calls.clear()
    workspace.provisioning.create(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(workspace) == ["us-east-1d"]


def test_partially_created_cluster_of_another_shape_is_rejected(workspace, make):
    killed_up(workspace, make, "us-east-1c")
    with pytest.raises(UsageError, match=r"partially created cluster demo is 2 x p3dn\.24xlarge, not the 4 x"):
        workspace.provisioning.create(make.plan(make.candidate(), nodes=4), "demo")
    assert ups(workspace) == ["us-east-1c"]


def test_time_since_a_killed_launch_is_billed(workspace, make):
    killed_up(workspace, make, "us-east-1c")
    opened = workspace.clock.now()
    launched = [f"i-us-east-1c-{index}" for index in range(2)]
    workspace.cloud.alive = dict.fromkeys(launched, "running")
    workspace.cloud.launches = dict.fromkeys(launched, opened)
    workspace.clock.sleep(600)
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    (entry,) = workspace.ledger.entries()
    assert entry.launched_at == opened


def test_second_up_does_not_run_the_engine(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.cloud.calls.clear()
    assert not workspace.provisioning.create(plan, "demo").made
    assert workspace.cloud.calls == []


def test_ssh_rule_follows_the_caller_address(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.cloud.cidr = "198.51.100.7/32"
    workspace.cloud.previewed = (PreviewStep("update", "urn", "aws:ec2/securityGroup:SecurityGroup", "nodes"),)
    record = reuse_cluster(workspace.context, "demo", plan).record
    assert record.placement.config["sshCidr"] == "198.51.100.7/32"
    assert workspace.records.cluster("demo") == record
    assert ups(workspace) == ["us-east-1c", "us-east-1c"]


@pytest.mark.parametrize("operation", ["replace", "delete", "create"])
def test_ssh_update_that_would_change_nodes_is_not_applied(workspace, make, operation):
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.cloud.cidr = "198.51.100.7/32"
    workspace.cloud.previewed = (PreviewStep(operation, "urn", "aws:ec2/fleet:Fleet", "gang"),)
    record = reuse_cluster(workspace.context, "demo", plan).record
    assert record.placement.config["sshCidr"] == "127.0.0.1/32"
    assert ups(workspace) == ["us-east-1c"]
    assert any("because the update would also change gang" in note for note in workspace.notes)


def test_unknown_caller_address_keeps_the_ssh_rule(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.create(plan, "demo")
    workspace.cloud.cidr = ConnectError("no answer")
    assert reuse_cluster(workspace.context, "demo", plan).record.placement.config["sshCidr"] == "127.0.0.1/32"


def test_cluster_without_nodes_is_incomplete(workspace, make):
    plan = make.plan(make.candidate())
    record = workspace.provisioning.create(plan, "demo").record
    workspace.records.save_cluster(changed(record, instance_ids=()), workspace.clock.now())
    with pytest.raises(Exception, match="no nodes"):
        workspace.provisioning.create(plan, "demo")
