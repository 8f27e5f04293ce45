"""A standing or half-made cluster is used again only as what it is."""

from dataclasses import replace

import pytest

from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.provision.engine import Step


class Killed(BaseException):
    pass


def killed_up(bench, make, *zones, **plan):
    def die(stack):
        if stack.config["zone"] == zones[-1]:
            raise Killed

    bench.cloud.before_up = die
    with pytest.raises(Killed):
        bench.provisioning.up(make.plan(*map(make.candidate, zones), **plan), "demo")
    bench.cloud.before_up = lambda stack: None


def ups(bench):
    return [zone for kind, _, zone in bench.cloud.calls if kind == "up"]


def test_a_killed_up_goes_on_with_the_candidate_it_was_at(bench, make):
    from cloudgpu.errors import CapacityError

    bench.cloud.refusals = {"us-east-1c": CapacityError("none")}
    killed_up(bench, make, "us-east-1c", "us-east-1d")
    bench.cloud.refusals = {}
    bench.cloud.calls.clear()
    bench.provisioning.up(make.plan(make.candidate("us-east-1c"), make.candidate("us-east-1d")), "demo")
    assert ups(bench) == ["us-east-1d"]


def test_a_half_made_cluster_does_not_become_one_of_another_shape(bench, make):
    killed_up(bench, make, "us-east-1c")
    with pytest.raises(UsageError, match=r"half-made cluster demo is 2 x p3dn\.24xlarge, not the 4 x"):
        bench.provisioning.up(make.plan(make.candidate(), nodes=4), "demo")
    assert ups(bench) == ["us-east-1c"]


def test_time_since_a_killed_launch_is_on_the_bill(bench, make):
    killed_up(bench, make, "us-east-1c")
    opened = bench.clock.now()
    bench.clock.sleep(600)
    bench.provisioning.up(make.plan(make.candidate()), "demo")
    (entry,) = bench.ledger.entries()
    assert entry.launched_at == opened


def test_a_second_up_runs_no_program(bench, make):
    plan = make.plan(make.candidate())
    bench.provisioning.up(plan, "demo")
    bench.cloud.calls.clear()
    assert not bench.provisioning.up(plan, "demo").made
    assert bench.cloud.calls == []


def test_port_22_follows_the_caller(bench, make):
    plan = make.plan(make.candidate())
    bench.provisioning.up(plan, "demo")
    bench.cloud.cidr = "198.51.100.7/32"
    bench.cloud.previewed = (Step("update", "urn", "aws:ec2/securityGroup:SecurityGroup", "nodes"),)
    record = bench.provisioning.standing("demo", plan).record
    assert record.config["sshCidr"] == "198.51.100.7/32"
    assert bench.records.cluster("demo") == record
    assert ups(bench) == ["us-east-1c", "us-east-1c"]


@pytest.mark.parametrize("operation", ["replace", "delete", "create"])
def test_a_newer_program_does_not_take_nodes_from_under_their_users(bench, make, operation):
    plan = make.plan(make.candidate())
    bench.provisioning.up(plan, "demo")
    bench.cloud.cidr = "198.51.100.7/32"
    bench.cloud.previewed = (Step(operation, "urn", "aws:ec2/fleet:Fleet", "gang"),)
    record = bench.provisioning.standing("demo", plan).record
    assert record.config["sshCidr"] == "127.0.0.1/32"
    assert ups(bench) == ["us-east-1c"]
    assert any("gang would change" in note for note in bench.notes)


def test_an_address_that_cannot_be_found_out_is_taken_to_be_unchanged(bench, make):
    plan = make.plan(make.candidate())
    bench.provisioning.up(plan, "demo")
    bench.cloud.cidr = ConnectError("no answer")
    assert bench.provisioning.standing("demo", plan).record.config["sshCidr"] == "127.0.0.1/32"


def test_a_cluster_without_nodes_is_not_whole(bench, make):
    plan = make.plan(make.candidate())
    record = bench.provisioning.up(plan, "demo").record
    bench.records.save_cluster(replace(record, instance_ids=()), bench.clock.now())
    with pytest.raises(Exception, match="it has no nodes"):
        bench.provisioning.up(plan, "demo")
