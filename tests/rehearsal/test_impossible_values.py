"""Impossible values in files, tags and arguments: a clear error for each, and everything else still works."""

import json

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

RECIPE = """\
schema: {schema}
name: it
resources: {{gpu: "V100:8"}}
launch:
  with: head-only
  command: "{command}"
environment:
  env: {{MODE: "{value}"}}
budget: {{expiry: {expiry}}}
"""
GOOD = {"schema": "1", "command": "sh -c true", "value": "fast", "expiry": "1h"}


@pytest.fixture
def ec2(workspace):
    """Return a client of the simulated AWS, as any user of the account could have."""
    made = workspace.run("rehearsal", "env")
    lines = [line.removeprefix("export ").split("=", 1) for line in made.stdout.splitlines() if "=" in line]
    values = {name: value.strip("'\"") for name, value in lines}
    return boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=values["AWS_ENDPOINT_URL"],
        aws_access_key_id=values["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=values["AWS_SECRET_ACCESS_KEY"],
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": r"sh -c a\0b"}, "it.yaml:6: launch.command: character 8 is the control character U+0000"),
        ({"value": r"\ud800"}, "it.yaml:8: environment.env.MODE: character 1 is half of a surrogate pair"),
        ({"schema": "true"}, "it.yaml:1: schema: expected 1, got true"),
        ({"expiry": "3650000d"}, "it.yaml:9: budget.expiry: expected a duration of at most 366d"),
    ],
    ids=["nul", "surrogate", "schema", "expiry"],
)
def test_recipe_with_impossible_values_is_rejected_before_launch(workspace, change, said):
    (workspace.work / "it.yaml").write_text(RECIPE.format(**{**GOOD, **change}))
    for command in (("recipe", "check"), ("plan",), ("up", "--yes")):
        done = workspace.run(*command, "it.yaml", code=2)
        assert said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert workspace.json("status")["clusters"] == []


def test_unreadable_expiry_tags_do_not_stop_sweep(workspace, ec2):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    odd = {"9999-12-31T23:59:59Z": "far", "soon": "../../x", "0001-01-01T00:00:00Z": "x" * 256}
    for place, (expires, cluster) in enumerate(odd.items()):
        tags = {"cloudgpu:cluster": cluster, "cloudgpu:expires-at": expires, "cloudgpu:owner": "stranger"}
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        group = ec2.create_security_group(GroupName=f"odd-{place}", Description="x")["GroupId"]
        ec2.create_tags(Resources=[group], Tags=listed)
    rows = {row["cluster"]: row for row in workspace.json("sweep")["clusters"]}
    assert {name: rows[name]["unreadable_expiry"] for name in odd.values()} == {name: at for at, name in odd.items()}
    assert rows["plain"]["unreadable_expiry"] is None
    assert "expiry unreadable: 9999-12-31T23:59:59Z" in workspace.run("sweep").stdout
    ended = workspace.json("sweep", "--yes", "--all-mine")["clusters"]
    assert [row["cluster"] for row in ended if row["ended"]] == ["plain"]
    removed = workspace.json("sweep", "--yes", "--owner", "stranger")["clusters"]
    assert {row["cluster"] for row in removed if row["ended"]} == set(odd.values())
    assert workspace.left() == {}


def test_damaged_record_does_not_hide_other_clusters_or_block_down(workspace):
    workspace.recipe()
    for name in ("good", "bad"):
        workspace.run("up", "plain", "--yes", "--name", name)
    path = workspace.home.cluster("bad").record
    path.write_text(json.dumps({**json.loads(path.read_text()), "node_hourly_usd": "NaN"}))
    states = {row["cluster"]: row["state"] for row in workspace.json("status")["clusters"]}
    assert states == {"good": "up", "bad": "damaged"}
    shown = workspace.run("status").stdout
    assert f"the record {path} is damaged: node_hourly_usd: expected a number of US dollars" in shown
    for wrong in (("--by", "999999999999d"), ("--until", "0001-01-01T00:00+23:59")):
        assert "Traceback" not in workspace.run("extend", "good", *wrong, code=2).stderr
    workspace.run("down", "bad")
    workspace.run("down", "good")
    assert workspace.left() == {}
    assert not client.nodes(workspace.cloud)


def test_invalid_setting_error_names_the_file_or_variable(workspace):
    for text in (
        "boot_seconds = 99999999999999999999",
        "boot_seconds = '٣'",
        'owner = "a\\u0000b"',
        "a = " + "[" * 2000,
    ):
        (workspace.work / "cloudgpu.toml").write_text(text)
        done = workspace.run("status", code=2)
        assert "Traceback" not in done.stderr
        assert "cloudgpu.toml" in done.stderr
    (workspace.work / "cloudgpu.toml").unlink()
    for name, value in (("CLOUDGPU_BOOT_SECONDS", "٣"), ("CLOUDGPU_OWNER", "a\x1bb"), ("CLOUDGPU_TEAM", "caf\udce9")):
        assert name in workspace.run("status", code=2, env={name: value}).stderr
