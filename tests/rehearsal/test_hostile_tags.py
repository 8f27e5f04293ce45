"""Hostile tags: commands print them safely, and their hints can be pasted into a shell."""

import subprocess

import boto3
import pytest

pytestmark = pytest.mark.rehearsal

# No ESC and no BEL: AWS answers in XML, which cannot hold them.
OWNER = "x;touch pwned;$(touch pwned)`touch pwned`'\x9b2J\u202e\nhint: touch pwned"


@pytest.fixture
def ec2(workspace):
    cloud = workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    return boto3.client("ec2", region_name="us-east-1", endpoint_url=cloud.url, **key)


@pytest.fixture
def tagged(ec2) -> str:
    """Create a security group of cluster `lab` and a volume of storage `sets` with a hostile owner tag."""

    def tags(resource: str, **named: str) -> dict:
        rows = {
            "cloudgpu:owner": OWNER,
            "cloudgpu:token": "t" * 8,
            **{f"cloudgpu:{name}": one for name, one in named.items()},
        }
        return {"ResourceType": resource, "Tags": [{"Key": key, "Value": value} for key, value in rows.items()]}

    group = tags("security-group", cluster="lab")
    ec2.create_security_group(GroupName="lab", Description="lab", TagSpecifications=[group])
    ec2.create_volume(
        AvailabilityZone="us-east-1a", Size=1, TagSpecifications=[tags("volume", storage="sets", kind="ebs")]
    )
    return OWNER


def hints(text: str) -> list[str]:
    return [line.removeprefix("hint: ") for line in text.splitlines() if line.startswith("hint: ")]


def check_characters(text: str) -> None:
    assert {char for char in text if not char.isprintable()} <= {"\n"}


@pytest.mark.parametrize("words", [("down", "lab"), ("storage", "delete", "sets", "--delete-data")], ids=" ".join)
def test_hint_with_a_hostile_owner_runs_no_other_command(workspace, tagged, words, tmp_path):
    done = workspace.run(*words, "--yes", code=2)
    check_characters(done.stdout + done.stderr)
    (hint,) = hints(done.stderr)
    assert "CLOUDGPU_OWNER=" in hint
    # A program of this name takes the place of the real one: only what the shell makes of the line is looked at.
    program = tmp_path / "cloudgpu"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    where = tmp_path / "pasted"
    where.mkdir()
    path = f"{tmp_path}:/usr/bin:/bin"
    pasted = subprocess.run(["sh", "-c", hint], cwd=where, env={"PATH": path}, capture_output=True, check=True)
    assert pasted.stdout.decode().split() == [word for word in words if word != "--delete-data"]
    assert list(where.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("sweep",), ("sweep", "--yes"), ("storage", "list"), ("image", "list")], ids=" ".join
)
def test_listings_escape_unprintable_owner_characters(workspace, tagged, words):
    done = workspace.run(*words)
    check_characters(done.stdout + done.stderr)
    assert not [line for line in (done.stdout + done.stderr).splitlines() if line.strip().startswith("hint: touch")]
    if words[0] != "image":
        assert "touch pwned" in done.stdout + done.stderr
