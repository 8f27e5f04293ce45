"""A standing or half-made cluster is used again only as what it is."""

from dataclasses import replace

import pytest

from cloudgpu.engine.base import PreviewStep
from cloudgpu.errors import ConnectError, UsageError


class Killed(BaseException):
    pass


def killed_up(workspace, make, *zones, **plan):
    def die(stack):
        if stack.config["zone"] == zones[-1]:
            raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        workspace.provisioning.up(make.plan(*map(make.candidate, zones), **plan), "demo")
    workspace.cloud.before_up = lambda stack: None


def ups(workspace):
    return [zone for kind, _, zone in workspace.cloud.calls if kind == "up"]


def test_a_killed_up_goes_on_with_the_candidate_it_was_at(workspace, make):
    from cloudgpu.errors import CapacityError

    workspace.cloud.refusals = {"us-east-1c": CapacityError("none")}
    killed_up(workspace, make, "us-east-1c", "us-east-1d")
    workspace.cloud.refusals = {}
    workspace.cloud.calls.clear()
    workspace.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(workspace) == ["us-east-1d"]


def test_a_half_made_cluster_does_not_become_one_of_another_shape(workspace, make):
    killed_up(workspace, make, "us-east-1c")
    with pytest.raises(UsageError, match=r"partially created cluster demo is 2 x p3dn\.24xlarge, not the 4 x"):
        workspace.provisioning.up(make.plan(make.candidate(), nodes=4), "demo")
    assert ups(workspace) == ["us-east-1c"]


def test_time_since_a_killed_launch_is_on_the_bill(workspace, make):
    killed_up(workspace, make, "us-east-1c")
    opened = workspace.clock.now()
    workspace.clock.sleep(600)
    workspace.provisioning.up(make.plan(make.candidate()), "demo")
    (entry,) = workspace.ledger.entries()
    assert entry.launched_at == opened


def test_a_second_up_runs_no_program(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.up(plan, "demo")
    workspace.cloud.calls.clear()
    assert not workspace.provisioning.up(plan, "demo").made
    assert workspace.cloud.calls == []


def test_port_22_follows_the_caller(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.up(plan, "demo")
    workspace.cloud.cidr = "198.51.100.7/32"
    workspace.cloud.previewed = (PreviewStep("update", "urn", "aws:ec2/securityGroup:SecurityGroup", "nodes"),)
    record = workspace.provisioning.reuse("demo", plan).record
    assert record.config["sshCidr"] == "198.51.100.7/32"
    assert workspace.records.cluster("demo") == record
    assert ups(workspace) == ["us-east-1c", "us-east-1c"]


@pytest.mark.parametrize("operation", ["replace", "delete", "create"])
def test_a_newer_program_does_not_take_nodes_from_under_their_users(workspace, make, operation):
    plan = make.plan(make.candidate())
    workspace.provisioning.up(plan, "demo")
    workspace.cloud.cidr = "198.51.100.7/32"
    workspace.cloud.previewed = (PreviewStep(operation, "urn", "aws:ec2/fleet:Fleet", "gang"),)
    record = workspace.provisioning.reuse("demo", plan).record
    assert record.config["sshCidr"] == "127.0.0.1/32"
    assert ups(workspace) == ["us-east-1c"]
    assert any("updating would change gang" in note for note in workspace.notes)


def test_an_address_that_cannot_be_found_out_is_taken_to_be_unchanged(workspace, make):
    plan = make.plan(make.candidate())
    workspace.provisioning.up(plan, "demo")
    workspace.cloud.cidr = ConnectError("no answer")
    assert workspace.provisioning.reuse("demo", plan).record.config["sshCidr"] == "127.0.0.1/32"


def test_a_cluster_without_nodes_is_not_whole(workspace, make):
    plan = make.plan(make.candidate())
    record = workspace.provisioning.up(plan, "demo").record
    workspace.records.save_cluster(replace(record, instance_ids=()), workspace.clock.now())
    with pytest.raises(Exception, match="no nodes"):
        workspace.provisioning.up(plan, "demo")
