"""State survives the server: kills before the response, restarts, and nodes that changed in the meantime."""

import os
import random
import signal
import time
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles

pytestmark = pytest.mark.rehearsal

KILLS = 100
UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"


def test_server_kills_before_response_neither_lose_nor_repeat_calls(server_process):
    """Send each call, kill the server, and repeat the call with the same token on a new server."""
    dice = random.Random(7)
    server_process.start()
    ami = server_process.aws("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": ami, "InstanceType": "g5.xlarge"}
    volume = {"AvailabilityZone": "us-east-1a", "Size": 1}
    ec2 = server_process.aws("ec2")
    server_process.end()
    instances: set[str] = set()
    volumes: set[str] = set()
    for number in range(KILLS):
        phase = dice.choice(["before", "after_effect"])
        server_process.start([{"do": "die", "mutating": True, "phase": phase}])
        call, wanted = (ec2.run_instances, run) if number % 2 else (ec2.create_volume, volume)
        with pytest.raises((BotoCoreError, ClientError)):
            call(**wanted, ClientToken=f"t{number}")
        assert server_process.was_killed(), f"round {number}: the fault did not kill the server"
        server_process.start()
        answer = call(**wanted, ClientToken=f"t{number}")
        if number % 2:
            instances.add(answer["Instances"][0]["InstanceId"])
        else:
            volumes.add(answer["VolumeId"])
        server_process.end(dice.choice([signal.SIGTERM, signal.SIGKILL]))
    server_process.start()
    left = client.list_resources(server_process.cloud)
    assert {row["id"] for row in left["instances"]} == instances
    assert len(instances) + len(volumes) == KILLS
    assert volumes <= {row["id"] for row in left["volumes"]}
    assert len(left["volumes"]) == KILLS, "one root volume an instance, and the volumes asked for"
    assert len(left["interfaces"]) == len(instances)


def test_stored_objects_survive_a_kill_and_are_not_rewritten(server_process):
    server_process.start()
    s3 = server_process.aws("s3")
    s3.create_bucket(Bucket="data")
    body = os.urandom(8 << 20)
    s3.put_object(Bucket="data", Key="big", Body=body, Metadata={"k": "v"})
    objects = RehearsalFiles.of(server_process.home).objects
    before = {path.name: path.stat().st_mtime_ns for path in objects.iterdir()}
    s3.put_object(Bucket="data", Key="small", Body=b"x")
    after = {path.name: path.stat().st_mtime_ns for path in objects.iterdir()}
    assert before.items() < after.items()
    snapshots = sum(path.stat().st_size for path in RehearsalFiles.of(server_process.home).state.iterdir())
    assert snapshots < 1 << 20
    server_process.end(signal.SIGKILL)
    server_process.start()
    got = server_process.aws("s3").get_object(Bucket="data", Key="big")
    assert got["Body"].read() == body
    assert got["Metadata"] == {"k": "v"}
    server_process.aws("s3").delete_object(Bucket="data", Key="big")
    server_process.end()
    server_process.start()
    assert len(list(objects.iterdir())) == 1
    assert [row["Key"] for row in server_process.aws("s3").list_objects_v2(Bucket="data")["Contents"]] == ["small"]


def test_restarted_server_reconciles_nodes_and_instances(server_process):
    server_process.start()
    ami = server_process.aws("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
    run = {"MinCount": 3, "MaxCount": 3, "ImageId": ami, "InstanceType": "g5.xlarge"}
    made = server_process.aws("ec2").run_instances(InstanceInitiatedShutdownBehavior="terminate", **run)["Instances"]
    kept, lost, off = (row["InstanceId"] for row in made)
    until(lambda: {node.state for node in client.nodes(server_process.cloud)} == {"running"})
    addresses = {node.instance_id: node.address for node in client.nodes(server_process.cloud)}
    server_process.aws("ec2").describe_instances()
    time.sleep(0)
    server_process.end()
    import json

    path = server_process.home.root / "nodes.json"
    nodes = json.loads(path.read_text())
    del nodes[lost]
    nodes[off]["state"] = "off"
    nodes["i-stranger"] = {"address": "127.9.9.9", "user": "x", "state": "running"}
    path.write_text(json.dumps(nodes))
    server_process.start()
    until(lambda: {node.instance_id for node in client.nodes(server_process.cloud)} == {kept, lost})
    until(lambda: {node.state for node in client.nodes(server_process.cloud)} == {"running"})
    until(lambda: "i-stranger" not in json.loads(path.read_text()))
    assert {node.instance_id: node.address for node in client.nodes(server_process.cloud)}[kept] == addresses[kept]
    rows = server_process.aws("ec2").describe_instances(InstanceIds=[off])["Reservations"][0]["Instances"]
    assert rows[0]["State"]["Name"] == "terminated"


def test_parameters_and_roles_survive_a_kill(server_process):
    server_process.start()
    server_process.aws("ssm").put_parameter(Name="/mine", Value="v", Type="SecureString")
    server_process.aws("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")
    server_process.end(signal.SIGKILL)
    server_process.start()
    assert server_process.aws("ssm").get_parameter(Name="/mine", WithDecryption=True)["Parameter"]["Value"] == "v"
    assert client.list_resources(server_process.cloud)["roles"][0]["id"] == "r"


def test_default_vpc_created_by_a_read_survives_a_kill(server_process):
    server_process.start()
    before = server_process.aws("ec2").describe_vpcs()["Vpcs"][0]["VpcId"]
    server_process.end(signal.SIGKILL)
    server_process.start()
    assert server_process.aws("ec2").describe_vpcs()["Vpcs"][0]["VpcId"] == before


def test_restarted_server_writes_only_changed_snapshots(server_process):
    server_process.start()
    server_process.aws("iam").create_role(RoleName="r", AssumeRolePolicyDocument="{}")
    server_process.aws("ec2").create_placement_group(GroupName="g")
    server_process.end()
    state = RehearsalFiles.of(server_process.home).state
    before = {path.name: path.stat().st_ino for path in state.iterdir()}
    server_process.start()
    server_process.aws("ec2").create_placement_group(GroupName="h")
    after = {path.name: path.stat().st_ino for path in state.iterdir()}
    assert {name for name in after if after[name] != before.get(name)} == {"ec2@us-east-1@123456789012.pickle"}


def test_service_that_cannot_be_saved_does_not_affect_others(server_process):
    server_process.start()
    server_process.aws("sqs").create_queue(QueueName="q")
    server_process.aws("logs").create_log_group(logGroupName="g")
    server_process.aws("ec2").create_placement_group(GroupName="g")
    server_process.end(signal.SIGKILL)
    server_process.start()
    assert [row["name"] for row in client.list_resources(server_process.cloud)["placement_groups"]] == ["g"]


@pytest.mark.parametrize("damage", [b"", b"another format\n", None])
def test_damaged_snapshot_stops_startup_and_is_not_overwritten(server_process, damage):
    server_process.start()
    server_process.aws("ec2").create_placement_group(GroupName="g")
    server_process.end()
    path = next(RehearsalFiles.of(server_process.home).state.glob("ec2@us-east-1@*"))
    content = damage if damage is not None else path.read_bytes()[:-40]
    path.write_bytes(content)
    with pytest.raises(AssertionError, match="died"):
        server_process.start()
    assert path.read_bytes() == content


def until(holds: Any, limit_s: float = 15.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
