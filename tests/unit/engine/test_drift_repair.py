"""Repair drift in security groups; other resources are not checked."""

from dataclasses import dataclass, field

from cloudgpu.aws.resources.handler import ExistingResource
from cloudgpu.engine.direct.register import DriftCheckedResource, find_drift, repair_drift
from cloudgpu.engine.pulumi_cli.state import drift_checked_groups

GROUP = "aws:ec2/securityGroup:SecurityGroup"


@dataclass
class Door:
    """A handler that can detect and repair drift."""

    drifted: dict = field(default_factory=dict)
    updated: list = field(default_factory=list)

    def drift(self, ctx, physical_id, inputs):
        return tuple(self.drifted.get(physical_id, ()))

    def update(self, ctx, physical_id, old, new):
        assert old == new
        self.updated.append((ctx, physical_id, new))
        return ExistingResource(physical_id, dict(new))


@dataclass
class Handlers:
    door: Door

    def handler(self, type_token):
        return self.door if type_token == GROUP else object()


def recorded(name, type_token=GROUP):
    return DriftCheckedResource(type_token, name, f"{name}-1", "us-east-1", f"token-of-{name}", {"name": name})


def context(region, token):
    return (region, token)


def test_only_drifted_resources_are_repaired_and_reported():
    door = Door({"a-1": ("22 was let in",), "b-1": ()})
    rows = [recorded("a"), recorded("b"), recorded("fleet", "aws:ec2/fleet:Fleet")]
    assert find_drift(rows, Handlers(door), context) == ("22 was let in",)
    assert door.updated == []
    assert repair_drift(rows, Handlers(door), context) == ("22 was let in",)
    assert door.updated == [(("us-east-1", "token-of-a"), "a-1", {"name": "a"})]


def test_drift_check_skips_deleted_and_external_resources():
    def row(name, **more):
        inputs = {"__defaults": [], "region": "us-west-2", "name": name}
        return {"type": GROUP, "urn": f"urn::{name}", "id": f"{name}-1", "inputs": inputs, **more}

    rows = [row("nodes"), row("old", delete=True), row("theirs", external=True), {"type": "x:y:Z", "urn": "urn::z"}]
    assert drift_checked_groups({"deployment": {"resources": rows}}, "us-west-2") == [
        DriftCheckedResource(GROUP, "nodes", "nodes-1", "us-west-2", "", {"name": "nodes"})
    ]
