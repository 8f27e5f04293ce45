"""The cluster program under the real Pulumi CLI: the same result as the direct engine, and nothing left."""

import pytest

from cloudgpu.errors import BadRequestError, CapacityError, NotOfferedError
from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.pulumi,
    # the rehearsal server outlives the process that started it
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def steps(engine, stack):
    return sorted((step.operation, step.type, step.name) for step in engine.preview(stack))


def kinds(applied):
    return sorted((resource.type, resource.name) for resource in applied.resources)


def user_tags(row):
    """Return the tags except those that the creating call added."""
    return sorted((key, text) for key, text in row["tags"].items() if not key.startswith(("aws:", "cloudgpu:intent")))


def tags_by_kind(resources):
    """Return the tags of the resources by kind."""
    return {kind: sorted(map(user_tags, rows)) for kind, rows in resources.items()}


def test_pulumi_up_refresh_and_down_match_the_direct_engine(deployment):
    expected = steps(deployment.direct(), deployment.stack)
    assert {operation for operation, _, _ in expected} == {"create"}
    assert steps(deployment.engine(), deployment.stack) == expected
    assert deployment.remaining() == ({}, ())

    applied = deployment.up()
    assert applied.changes["create"] == len(expected)
    nodes = {node.instance_id: node for node in client.nodes(deployment.cloud)}
    assert sorted(applied.outputs["instanceIds"]) == sorted(nodes)
    assert {(node.cluster, node.zone, node.state) for node in nodes.values()} == {("demo", "us-east-1c", "running")}
    fleet = next(event for event in deployment.events if event.type.endswith(":Fleet") and event.kind == "done")
    assert (fleet.operation, fleet.detail) == ("create", applied.outputs["fleetId"])
    by_pulumi = tags_by_kind(deployment.resources())

    again = deployment.up()
    assert dict(again.changes) == {"same": len(expected)}
    assert again.outputs == applied.outputs
    refreshed = deployment.engine().refresh(deployment.stack)
    assert refreshed.outputs == applied.outputs
    assert dict(deployment.up().changes) == {"same": len(expected)}
    assert {step.operation for step in deployment.engine().preview(deployment.stack)} == {"same"}

    deployment.destroy()
    assert deployment.remaining() == ({}, ())
    assert not any((deployment.root / "rehearsal" / "projects").iterdir())

    direct = deployment.direct().up(deployment.stack, deployment.events.append)
    assert kinds(direct) == kinds(applied)
    assert set(direct.outputs) == set(applied.outputs)
    assert tags_by_kind(deployment.resources()) == by_pulumi
    deployment.direct().destroy(deployment.stack, deployment.events.append)
    assert deployment.remaining() == ({}, ())


def test_capacity_error_is_typed_and_the_next_zone_works(deployment):
    client.put_capacity(deployment.cloud, {"us-east-1c/*/*": 1})
    with pytest.raises(CapacityError) as caught:
        deployment.up()
    assert caught.value.code == "InsufficientInstanceCapacity"
    assert client.list_resources(deployment.cloud)["instances"] == []
    deployment.config["zone"] = "us-east-1d"
    deployment.up()
    assert {node.zone for node in client.nodes(deployment.cloud)} == {"us-east-1d"}
    # After a failed launch, another launch is a new attempt and does not return the old response.
    deployment.destroy()
    assert deployment.remaining() == ({}, ())


def test_rejected_launch_can_be_retried(deployment):
    client.put_capacity(deployment.cloud, {"us-east-1c/*/*": 1})
    with pytest.raises(CapacityError):
        deployment.up()
    client.put_capacity(deployment.cloud, {})
    assert len(deployment.up().outputs["instanceIds"]) == 2
    deployment.destroy()
    assert deployment.remaining() == ({}, ())


def test_retired_type_and_invalid_setting_raise_typed_errors(deployment):
    deployment.config |= {"instanceType": "p3.16xlarge", "efaInterfaces": "0"}
    with pytest.raises(NotOfferedError):
        deployment.up()
    deployment.config["nodes"] = "none"
    with pytest.raises(BadRequestError, match="cloudgpu:nodes is 'none'"):
        deployment.up()
    deployment.destroy()
    assert deployment.remaining() == ({}, ())


def test_changed_ssh_cidr_updates_the_security_group_in_place(deployment):
    deployment.up()
    deployment.config["sshCidr"] = "127.0.0.2/32"
    (changed,) = [step for step in deployment.engine().preview(deployment.stack) if step.operation != "same"]
    assert (changed.operation, changed.type) == ("update", "aws:ec2/securityGroup:SecurityGroup")
    applied = deployment.up()
    assert applied.changes.keys() == {"update", "same"}
    assert applied.changes["update"] == 1
    groups = deployment.clients().client("ec2").describe_security_groups(GroupIds=[applied.outputs["securityGroupId"]])
    assert "127.0.0.2/32" in str(groups)
    deployment.destroy()
    assert deployment.remaining() == ({}, ())


PROGRAM_WITH_SECRET = """
import pulumi
import pulumi_aws as aws

config = pulumi.Config("cloudgpu")
password = config.require_secret("password")
aws.ec2.KeyPair("demo", key_name="demo", public_key=config.require("publicKey"), tags={"note": password})
pulumi.export("password", password)
"""


def test_secrets_are_encrypted_in_pulumi_state(deployment, tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "Pulumi.yaml").write_text("name: cloudgpu\nruntime: python\n")
    (tmp_path / "program" / "__main__.py").write_text(PROGRAM_WITH_SECRET)
    deployment.program = tmp_path / "program"
    deployment.config["password"] = "hush-hush"
    deployment.secrets = frozenset({"password"})
    assert dict(deployment.up().outputs) == {"password": "[secret]"}
    (pair,) = deployment.clients().client("ec2").describe_key_pairs(KeyNames=["demo"])["KeyPairs"]
    assert {"Key": "note", "Value": "hush-hush"} in pair["Tags"]
    root = deployment.root / "rehearsal"
    for path in [path for path in root.rglob("*") if path.is_file()]:
        assert b"hush-hush" not in path.read_bytes(), path
    assert (root / "passphrase").stat().st_mode & 0o077 == 0
    assert deployment.up().changes.keys() == {"same"}
    deployment.destroy()
    assert deployment.remaining() == ({}, ())
