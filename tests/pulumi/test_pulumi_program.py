"""The cluster program under the real Pulumi CLI: the same result as the direct engine, and nothing left."""

import pytest

from cloudgpu.errors import BadRequestError, CapacityError, NotOfferedError
from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.pulumi,
    # the rehearsal server is meant to outlive whoever started it
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


def steps(engine, stack):
    return sorted((step.operation, step.type, step.name) for step in engine.preview(stack))


def kinds(applied):
    return sorted((one.type, one.name) for one in applied.resources)


def own_tags(row):
    """Return the tags except those that the creating call added."""
    return sorted((key, text) for key, text in row["tags"].items() if not key.startswith(("aws:", "cloudgpu:intent")))


def shape(made):
    """Return the tags of the resources by kind."""
    return {kind: sorted(map(own_tags, rows)) for kind, rows in made.items()}


def test_pulumi_up_refresh_and_down_match_the_direct_engine(place):
    wanted = steps(place.direct(), place.stack)
    assert {operation for operation, _, _ in wanted} == {"create"}
    assert steps(place.engine(), place.stack) == wanted
    assert place.left() == ({}, ())

    applied = place.up()
    assert applied.changes["create"] == len(wanted)
    nodes = {node.instance_id: node for node in client.nodes(place.cloud)}
    assert sorted(applied.outputs["instanceIds"]) == sorted(nodes)
    assert {(node.cluster, node.zone, node.state) for node in nodes.values()} == {("demo", "us-east-1c", "running")}
    fleet = next(one for one in place.events if one.type.endswith(":Fleet") and one.kind == "done")
    assert (fleet.operation, fleet.detail) == ("create", applied.outputs["fleetId"])
    by_pulumi = shape(place.made())

    again = place.up()
    assert dict(again.changes) == {"same": len(wanted)}
    assert again.outputs == applied.outputs
    refreshed = place.engine().refresh(place.stack)
    assert refreshed.outputs == applied.outputs
    assert dict(place.up().changes) == {"same": len(wanted)}
    assert {step.operation for step in place.engine().preview(place.stack)} == {"same"}

    place.destroy()
    assert place.left() == ({}, ())
    assert not any((place.root / "rehearsal" / "projects").iterdir())

    direct = place.direct().up(place.stack, place.events.append)
    assert kinds(direct) == kinds(applied)
    assert set(direct.outputs) == set(applied.outputs)
    assert shape(place.made()) == by_pulumi
    place.direct().destroy(place.stack, place.events.append)
    assert place.left() == ({}, ())


def test_capacity_error_is_typed_and_the_next_zone_works(place):
    client.put_capacity(place.cloud, {"us-east-1c/*/*": 1})
    with pytest.raises(CapacityError) as caught:
        place.up()
    assert caught.value.code == "InsufficientInstanceCapacity"
    assert client.list_resources(place.cloud)["instances"] == []
    place.config["zone"] = "us-east-1d"
    place.up()
    assert {node.zone for node in client.nodes(place.cloud)} == {"us-east-1d"}
    # the same again, after a refusal: a new attempt, not the old answer
    place.destroy()
    assert place.left() == ({}, ())


def test_rejected_launch_can_be_retried(place):
    client.put_capacity(place.cloud, {"us-east-1c/*/*": 1})
    with pytest.raises(CapacityError):
        place.up()
    client.put_capacity(place.cloud, {})
    assert len(place.up().outputs["instanceIds"]) == 2
    place.destroy()
    assert place.left() == ({}, ())


def test_retired_type_and_invalid_setting_raise_typed_errors(place):
    place.config |= {"instanceType": "p3.16xlarge", "efaInterfaces": "0"}
    with pytest.raises(NotOfferedError):
        place.up()
    place.config["nodes"] = "none"
    with pytest.raises(BadRequestError, match="cloudgpu:nodes is 'none'"):
        place.up()
    place.destroy()
    assert place.left() == ({}, ())


def test_changed_ssh_cidr_updates_the_security_group_in_place(place):
    place.up()
    place.config["sshCidr"] = "127.0.0.2/32"
    (changed,) = [step for step in place.engine().preview(place.stack) if step.operation != "same"]
    assert (changed.operation, changed.type) == ("update", "aws:ec2/securityGroup:SecurityGroup")
    applied = place.up()
    assert applied.changes.keys() == {"update", "same"}
    assert applied.changes["update"] == 1
    groups = place.clients().client("ec2").describe_security_groups(GroupIds=[applied.outputs["securityGroupId"]])
    assert "127.0.0.2/32" in str(groups)
    place.destroy()
    assert place.left() == ({}, ())


SECRETIVE = """
import pulumi
import pulumi_aws as aws

config = pulumi.Config("cloudgpu")
password = config.require_secret("password")
aws.ec2.KeyPair("demo", key_name="demo", public_key=config.require("publicKey"), tags={"note": password})
pulumi.export("password", password)
"""


def test_secrets_are_encrypted_in_pulumi_state(place, tmp_path):
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "Pulumi.yaml").write_text("name: cloudgpu\nruntime: python\n")
    (tmp_path / "program" / "__main__.py").write_text(SECRETIVE)
    place.program = tmp_path / "program"
    place.config["password"] = "hush-hush"
    place.secrets = frozenset({"password"})
    assert dict(place.up().outputs) == {"password": "[secret]"}
    (pair,) = place.clients().client("ec2").describe_key_pairs(KeyNames=["demo"])["KeyPairs"]
    assert {"Key": "note", "Value": "hush-hush"} in pair["Tags"]
    root = place.root / "rehearsal"
    for path in [one for one in root.rglob("*") if one.is_file()]:
        assert b"hush-hush" not in path.read_bytes(), path
    assert (root / "passphrase").stat().st_mode & 0o077 == 0
    assert place.up().changes.keys() == {"same"}
    place.destroy()
    assert place.left() == ({}, ())
