"""Third-party clients see and change the same nodes: OpenSSH, scp, rsync and the AWS CLI."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.documentation import blocks_for

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
TAG = "cloudgpu:cluster"
RECIPE = r"""
schema: 1
name: watched
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}
launch:
  with: torchrun
  ranks_per_node: 1
  command: wait.py
budget: {expiry: 1h}
"""
SCRIPT = """
import os, pathlib, time

print("rank", os.environ["RANK"], "waits", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


@dataclass(frozen=True)
class Person:
    """A user with a separate home, and the commands that the user runs."""

    work: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "CLOUDGPU_HOME": str(self.work / "home")}

    def cloudgpu(self, *args: str, code: int = 0) -> str:
        done = self.run([sys.executable, "-m", "cloudgpu", *args], env={})
        assert done.returncode == code, f"cloudgpu {' '.join(args)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self.cloudgpu(*args, "--json", code=code))

    def run(self, argv: Sequence[str | Path], *, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.work,
            env={**self.environment, **env},
            check=False,
            timeout=LIMIT_S,
        )

    def ran(self, *argv: str | Path, **env: str) -> str:
        done = self.run(argv, env=env)
        assert done.returncode == 0, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def nodes(self) -> list[dict[str, Any]]:
        return self.json("rehearsal", "status")["nodes"]


@dataclass(frozen=True)
class Aws:
    """The AWS CLI, configured for the rehearsal cloud only by the output of `rehearsal env`."""

    person: Person
    lines: str
    program: str

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = " ".join(f"export {name}={value};" for name, value in env.items())
        # A shell reads the lines, as a person's does; "$@" brings the arguments past it untouched.
        script = f'{self.lines}\n{given}\nexec "$@"'
        return self.person.run(["/bin/sh", "-c", script, "sh", self.program, *args], env={})

    def json(self, *args: str) -> Any:
        done = self.run(*args, "--output", "json")
        assert done.returncode == 0, f"aws {' '.join(args)}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Going:
    """A detached run and its cluster."""

    run_id: str
    cluster: str


def found(name: str) -> str:
    """Return the path of a program; if it is missing, skip the test, which is a failure in CI."""
    path = shutil.which(name) or shutil.which(name, path=f"/usr/bin:/usr/sbin:{ROOT / '.cache/bin'}")
    if path is None:
        pytest.skip(f"{name} is not installed; scripts/test-parts installs it")
    return path


def found_aws() -> str:
    """Return the AWS CLI that scripts/test-parts installed, if any: a version manager's shim may not work."""
    ours = ROOT / ".cache" / "bin" / "aws"
    return str(ours) if ours.exists() else found("aws")


@contextlib.contextmanager
def somebody(work: Path) -> Iterator[Person]:
    work.mkdir()
    person = Person(work)
    try:
        yield person
    finally:
        person.cloudgpu("rehearsal", "stop")


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    # A space in the path must not split a command line of anybody.
    with somebody(tmp_path_factory.mktemp("real") / "ann s") as person:
        yield person


@pytest.fixture(scope="module")
def going(ann: Person) -> Going:
    folder = ann.work / "recipes" / "watched"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "wait.py").write_text(SCRIPT)
    told = ann.json("train", "watched", "--on", "rehearsal", "--yes", "--detach")
    assert told["state"] == "running"
    return Going(told["run_id"], told["cluster"])


@pytest.fixture(scope="module")
def aws(ann: Person, going: Going) -> Aws:
    return Aws(ann, ann.cloudgpu("rehearsal", "env"), found_aws())


@pytest.fixture
def by_hand(ann: Person, going: Going, tmp_path: Path) -> tuple[list[str], str]:
    """Return SSH options and destination of node 0, using only `rehearsal status --json` and OpenSSH's tools."""
    node = head(ann, going)
    scanned = ann.run([found("ssh-keyscan"), "-p", str(node["port"]), node["address"]], env={}).stdout
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(scanned)
    shown = ann.ran(found("ssh-keygen"), "-l", "-f", known_hosts)
    assert node["host_key"] in shown, "the key that answers is not the key that the cloud tells of"
    options = [
        *("-i", str(ann.work / "home" / "ssh" / "id_ed25519")),
        *("-o", f"UserKnownHostsFile={known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null"),
        *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", f"Port={node['port']}"),
        *("-F", "/dev/null"),
    ]
    return options, f"{node['user']}@{node['address']}"


def head(ann: Person, going: Going) -> dict[str, Any]:
    """Return node 0 as the simulator reports it."""
    (cluster,) = ann.json("status")["clusters"]
    first = cluster["instances"][0]["id"]
    return next(node for node in ann.nodes() if node["instance_id"] == first)


def test_printed_ssh_command_connects_and_checks_host_key(ann: Person, going: Going):
    printed = ann.cloudgpu("ssh", going.cluster, "--node", "1", "--print").strip()
    said = ann.ran("/bin/sh", "-c", f"{printed} 'echo \"$CLOUDGPU_NODE_ID $(whoami)\"; echo a b'")
    assert said.splitlines()[-1] == "a b"
    # A stranger at the same address is refused by the same command line.
    (pinned,) = (ann.work / "home/clusters" / going.cluster).glob("known_hosts.1")
    key = pinned.read_text().split()[-1]
    pinned.write_text(pinned.read_text().replace(key, key[:-6] + "AAAAAA"))
    refused = ann.run(["/bin/sh", "-c", f"{printed} true"], env={})
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_openssh_scp_and_rsync_work_without_cloudgpu(
    ann: Person, going: Going, by_hand: tuple[list[str], str], tmp_path: Path
):
    options, where = by_hand
    ssh = found("ssh")
    assert ann.ran(ssh, *options, where, "printf", "%s", "'two words'") == "two words"
    failing = ann.run([ssh, *options, where, "exit 7"], env={})
    assert failing.returncode == 7
    assert "rank 0 waits" in ann.ran(ssh, *options, where, f"cat .cloudgpu/runs/{going.run_id}/rank-0.log")

    sent = tmp_path / "sent"
    (sent / "deep").mkdir(parents=True)
    (sent / "deep" / "a b").write_bytes(os.urandom(300_000))
    (sent / "empty").touch()
    ann.ran(found("scp"), "-q", "-r", *options, sent, f"{where}:by-scp")
    ann.ran(found("scp"), "-q", "-r", *options, f"{where}:by-scp", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(sent)

    found("rsync")
    shell = " ".join(f"'{word}'" for word in [ssh, *options])
    for _ in range(2):
        counted = ann.ran("rsync", "-a", "--stats", "-e", shell, f"{sent}/", f"{where}:by-rsync/")
    assert "Number of regular files transferred: 0" in counted
    ann.ran("rsync", "-a", "-e", shell, f"{where}:by-rsync/", f"{tmp_path}/again/")
    assert tree(tmp_path / "again") == tree(sent)


def test_ssh_login_with_other_key_is_denied(ann: Person, by_hand: tuple[list[str], str], tmp_path: Path):
    options, where = by_hand
    ann.ran(found("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "stranger")
    at = options.index("-i") + 1
    refused = ann.run(
        [found("ssh"), *options[:at], str(tmp_path / "stranger"), *options[at + 1 :], where, "true"], env={}
    )
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_aws_cli_lists_same_nodes(ann: Person, going: Going, aws: Aws):
    told = aws.json("ec2", "describe-instances", "--filters", f"Name=tag:cloudgpu:cluster,Values={going.cluster}")
    theirs = [instance for reservation in told["Reservations"] for instance in reservation["Instances"]]
    ours = ann.nodes()
    assert len(ours) == 2
    assert seen(theirs) == {
        (node["instance_id"], node["state"], node["address"], node["zone"], node["instance_type"]) for node in ours
    }
    (cluster,) = ann.json("status", "--refresh")["clusters"]
    assert {(one["id"], one["state"]) for one in cluster["instances"]} == {row[:2] for row in seen(theirs)}


def test_aws_commands_of_the_fault_guide_list_and_reach_the_nodes(ann: Person, going: Going, aws: Aws, tmp_path: Path):
    (block,) = blocks_for(__file__, "docs/guides/faults.md")
    (tmp_path / "cloudgpu").write_text(f'#!/bin/sh\nexec {sys.executable} -m cloudgpu "$@"\n')
    (tmp_path / "cloudgpu").chmod(0o755)
    (tmp_path / "aws").symlink_to(aws.program)
    script = block.replace(" lab ", f" {going.cluster} ")
    listed = ann.ran("bash", "-euc", script, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert [node["instance_id"] for node in ann.nodes() if node["instance_id"] not in listed] == []
    assert listed.count("running") == 2


def test_aws_cli_finds_exactly_journaled_resources_by_tag(ann: Person, going: Going, aws: Aws):
    listed = journal(ann.work / "home/clusters" / going.cluster / "us-east-1.journal")
    untaggable = {"aws:iam/rolePolicy:RolePolicy", "aws:scheduler/schedule:Schedule"}
    named = {kind: {row["id"] for row in rows} for kind, rows in listed.items()}
    (fleet,) = listed["aws:ec2/fleet:Fleet"]
    nodes = {one for part in fleet["outputs"]["fleetInstanceSets"] for one in part["instanceIds"]}
    # What EC2 made with a node, in the same call.
    told = aws.json("ec2", "describe-instances", "--instance-ids", *sorted(nodes))
    parts = {
        part
        for reservation in told["Reservations"]
        for node in reservation["Instances"]
        for part in [
            *(disk["Ebs"]["VolumeId"] for disk in node["BlockDeviceMappings"]),
            *(one["NetworkInterfaceId"] for one in node["NetworkInterfaces"]),
        ]
    }
    in_ec2 = {
        "aws:ec2/fleet:Fleet": named["aws:ec2/fleet:Fleet"],
        "aws:ec2/securityGroup:SecurityGroup": named["aws:ec2/securityGroup:SecurityGroup"],
        "aws:ec2/launchTemplate:LaunchTemplate": named["aws:ec2/launchTemplate:LaunchTemplate"],
        "aws:ec2/keyPair:KeyPair": {row["outputs"]["keyPairId"] for row in listed["aws:ec2/keyPair:KeyPair"]},
        "aws:ec2/placementGroup:PlacementGroup": {
            row["outputs"]["placementGroupId"] for row in listed["aws:ec2/placementGroup:PlacementGroup"]
        },
    }
    elsewhere = tagged_elsewhere(aws, going.cluster)
    wanted = ["--filters", f"Name=key,Values={TAG}", f"Name=value,Values={going.cluster}"]
    seen_by_tag = {one["ResourceId"] for one in aws.json("ec2", "describe-tags", *wanted)["Tags"]}
    assert seen_by_tag == {*nodes, *parts}.union(*in_ec2.values())
    assert elsewhere == {kind: named[kind] for kind in elsewhere}
    assert set(listed) == {*in_ec2, *elsewhere, *untaggable}


def test_aws_cli_creates_uses_and_deletes_bucket(ann: Person, aws: Aws, tmp_path: Path):
    (tmp_path / "a b.bin").write_bytes(os.urandom(9_000_000))  # beyond the size from which it sends in parts
    for args in (
        ["s3", "mb", "s3://mine"],
        ["s3", "cp", "--quiet", str(tmp_path / "a b.bin"), "s3://mine/x/a b.bin"],
        ["s3", "cp", "--quiet", "s3://mine/x/a b.bin", str(tmp_path / "back.bin")],
    ):
        done = aws.run(*args)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "a b.bin").read_bytes()
    assert "9000000 a b.bin" in aws.run("s3", "ls", "s3://mine/x/").stdout
    assert aws.run("s3", "rb", "--force", "s3://mine").returncode == 0
    assert "mine" not in aws.run("s3", "ls").stdout


@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
def test_wrong_aws_credentials_are_rejected(aws: Aws, wrong: str):
    refused = aws.run("ec2", "describe-instances", "--debug", **{wrong: "AKIAWRONGWRONGWRONG1"})
    assert refused.returncode != 0
    assert '" 403 ' in refused.stderr
    expected = "SignatureDoesNotMatch" if wrong.endswith("ACCESS_KEY") else "AuthFailure"
    assert expected in refused.stderr


def test_separate_homes_have_separate_clouds(going: Going, aws: Aws, tmp_path: Path):
    with somebody(tmp_path / "bob") as bob:
        other = Aws(bob, bob.cloudgpu("rehearsal", "env"), aws.program)
        assert other.json("ec2", "describe-instances")["Reservations"] == []
        assert bob.nodes() == []
        assert bob.json("status")["clusters"] == []
        # Nor does ann's key open bob's cloud, although it is on the same machine.
        address = next(line for line in other.lines.splitlines() if "AWS_ENDPOINT_URL=" in line).partition("=")[2]
        crossed = aws.run("ec2", "describe-instances", AWS_ENDPOINT_URL=address)
        assert crossed.returncode != 0


def test_terminated_node_fails_run_and_is_reported(ann: Person, going: Going, aws: Aws):
    """Runs last because it ends the run that the other tests use."""
    (cluster,) = ann.json("status")["clusters"]
    victim = cluster["instances"][1]["id"]
    told = aws.json("ec2", "terminate-instances", "--instance-ids", victim)
    assert told["TerminatingInstances"][0]["PreviousState"]["Name"] == "running"
    until(lambda: states(ann)[victim] == "terminated")
    (cluster,) = ann.json("status", "--refresh")["clusters"]
    assert cluster["state"] == "degraded"
    assert victim not in {node["instance_id"] for node in ann.nodes()}
    outcome = ann.json("attach", going.run_id, code=5)
    assert outcome["state"] == "failed"
    assert "node 1" in outcome["reason"]
    assert outcome["left"] == []
    assert ann.json("status")["clusters"] == []
    assert ann.nodes() == []
    left = aws.json("ec2", "describe-instances", "--filters", "Name=instance-state-name,Values=pending,running,stopped")
    assert left["Reservations"] == []


def journal(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the completed creations by resource type."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    types = {row["seq"]: row["type"] for row in rows if row["row"] == "intent"}
    assert {row["operation"] for row in rows if row["row"] == "intent"} == {"create"}
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["row"] == "done":
            found.setdefault(types[row["seq"]], []).append(row)
    assert sum(map(len, found.values())) == len(types), "a call is under way"
    return found


def tagged_elsewhere(aws: Aws, cluster: str) -> dict[str, set[str]]:
    """Return the resources outside EC2 with the cluster's tag, by type, after checking each in the account."""
    roles = [one["RoleName"] for one in aws.json("iam", "list-roles")["Roles"]]
    profiles = [one["InstanceProfileName"] for one in aws.json("iam", "list-instance-profiles")["InstanceProfiles"]]
    groups = {one["Name"]: one["Arn"] for one in aws.json("scheduler", "list-schedule-groups")["ScheduleGroups"]}
    get_profile = ("iam", "get-instance-profile", "--instance-profile-name")
    get_group = ("scheduler", "list-tags-for-resource", "--resource-arn")
    tags = {
        "aws:iam/role:Role": {one: aws.json("iam", "list-role-tags", "--role-name", one)["Tags"] for one in roles},
        "aws:iam/instanceProfile:InstanceProfile": {
            one: aws.json(*get_profile, one)["InstanceProfile"]["Tags"] for one in profiles
        },
        "aws:scheduler/scheduleGroup:ScheduleGroup": {
            name: aws.json(*get_group, arn)["Tags"] for name, arn in groups.items()
        },
    }
    tag = {"Key": TAG, "Value": cluster}
    return {kind: {name for name, found in named.items() if tag in found} for kind, named in tags.items()}


def states(person: Person) -> dict[str, str]:
    (cluster,) = person.json("status", "--refresh")["clusters"]
    return {one["id"]: one["state"] for one in cluster["instances"]}


def seen(instances: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Convert instances from the AWS CLI to tuples in the field order of `rehearsal status`."""
    return {
        (
            one["InstanceId"],
            one["State"]["Name"],
            one["PublicIpAddress"],
            one["Placement"]["AvailabilityZone"],
            one["InstanceType"],
        )
        for one in instances
    }


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
