"""The server on a full disk: rejected calls have no effect, acknowledged data is kept, and the server recovers."""

import errno
import multiprocessing
import signal
import time

import pytest
from botocore.exceptions import ClientError

from cloudgpu.paths import unwritable_error
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.aws_api import store
from cloudgpu.rehearsal.layout import RehearsalFiles
from tests.rehearsal.endpoint.server_process import ServerProcess
from tests.rehearsal.endpoint.writers import ABSENT, WRITERS, Clients, Writer, observed, settle
from tests.rehearsal.test_homes import fill, mounted

pytestmark = pytest.mark.rehearsal

REFUSAL = "InsufficientStorage"
LIMIT_S = 60.0


@pytest.fixture
def small(tmp_path):
    """Yield servers whose state is on a small disk, and the disk."""
    with mounted("tmpfs", "none", tmp_path / "rehearsal", "size=24m") as disk:
        server_process = ServerProcess(tmp_path)
        yield server_process, disk
        server_process.end(signal.SIGKILL)


def during(seconds, writers, enough=lambda: True):
    """Let writers work for at least `seconds`, and until `enough` is true."""
    deadline = time.monotonic() + LIMIT_S
    for writer in writers:
        writer.start()
    time.sleep(seconds)
    while not enough():
        assert time.monotonic() < deadline, "the writers did not do enough"
        time.sleep(0.05)
    for writer in writers:
        writer.stop.set()
        writer.join(60)
        assert writer.errors == [], writer.errors


def wanted(expected):
    return {key: value for one in expected for key, value in one.items() if value != ABSENT}


def die_at_the_start(server_process, disk):
    """Kill the server and start one that finds no space. An unfinished file of the killed one may free a little."""
    for _ in range(5):
        server_process.end(signal.SIGKILL)
        fill(disk)
        try:
            server_process.start()
        except AssertionError as err:
            assert "died at its start" in str(err)  # noqa: PT017 - a start that succeeds is repeated
            return
    pytest.fail("the server started five times on a full disk")


def test_full_disk_rejects_writes_and_keeps_acknowledged_data(small):
    server_process, disk = small
    server_process.start()
    aws = Clients(server_process)
    expected = [{} for _ in range(WRITERS)]

    def wave(number):
        return [Writer(at, aws, 10 * number + at, expected[at], REFUSAL) for at in range(WRITERS)]

    during(1.5, wave(1))
    fill(disk)
    writers = wave(2)
    # At least four kinds of calls are rejected. A slow machine needs longer for them than a fast one.
    during(1.5, writers, lambda: len({kind for writer in writers for kind in tuple(writer.refused)}) > 3)
    for message in {text for writer in writers for text in writer.messages}:
        assert "had no effect: no space left on the disk that holds" in message
        assert "free some disk space" in message
    settle(server_process)
    assert observed(aws) == wanted(expected)

    die_at_the_start(server_process, disk)
    (disk / "ballast").unlink()
    server_process.start()
    settle(server_process)
    assert observed(aws) == wanted(expected)

    fill(disk)
    writers = wave(3)
    during(0.5, writers)
    (disk / "ballast").unlink()
    writers = wave(4)
    during(0.5, writers)
    assert not any(writer.refused for writer in writers)
    settle(server_process)
    assert observed(aws) == wanted(expected)


def launched_until_refused(aws, run):
    """Launch until the server rejects it; its disk reserve may allow a few more launches."""
    ids = []
    try:
        while True:
            ids += [row["InstanceId"] for row in aws.ec2.run_instances(**run)["Instances"]]
    except ClientError as err:
        if err.response["Error"]["Code"] != REFUSAL:
            raise
    return ids


def test_resources_can_be_deleted_on_a_full_disk(small):
    server_process, disk = small
    server_process.start()
    aws = Clients(server_process)
    run = {"MinCount": 3, "MaxCount": 3, "ImageId": aws.ami, "InstanceType": "g5.xlarge"}
    ids = [row["InstanceId"] for row in aws.ec2.run_instances(**run)["Instances"]]
    group = aws.ec2.create_security_group(GroupName="g", Description="g")["GroupId"]
    aws.s3.put_object(Bucket="data", Key="k", Body=b"x" * 100_000)
    settle(server_process)
    fill(disk)
    ids += launched_until_refused(aws, run)
    settle(server_process)
    assert len(client.nodes(server_process.cloud)) == len(ids)
    aws.ec2.terminate_instances(InstanceIds=ids)
    aws.ec2.delete_security_group(GroupId=group)
    aws.s3.delete_object(Bucket="data", Key="k")
    aws.iam.delete_role(RoleName="expiry")
    settle(server_process)
    server_process.end(signal.SIGKILL)
    (disk / "ballast").unlink()
    server_process.start()
    settle(server_process)
    found = client.list_resources(server_process.cloud)
    assert [row["state"] for row in found["instances"] if row["state"] != "terminated"] == []
    assert not found["roles"]
    assert aws.s3.list_objects_v2(Bucket="data")["KeyCount"] == 0


def test_object_larger_than_the_disk_leaves_no_partial_file(small):
    server_process, _ = small
    server_process.start()
    aws = Clients(server_process)
    objects = RehearsalFiles.of(server_process.home).objects
    aws.s3.put_object(Bucket="data", Key="small", Body=b"x")
    before = sorted(path.name for path in objects.iterdir())
    for _ in range(3):
        with pytest.raises(ClientError, match=REFUSAL):
            aws.s3.put_object(Bucket="data", Key="large", Body=b"y" * (30 << 20))
    assert sorted(path.name for path in objects.iterdir()) == before
    assert [row["Key"] for row in aws.s3.list_objects_v2(Bucket="data")["Contents"]] == ["small"]
    aws.s3.put_object(Bucket="data", Key="next", Body=b"z" * (1 << 20))
    server_process.end(signal.SIGKILL)
    server_process.start()
    assert aws.s3.get_object(Bucket="data", Key="next")["Body"].read() == b"z" * (1 << 20)


def refusing(fails, write_durably):
    """Return a writer that fails as on a full disk while `fails` is set."""

    def failing(path, content):
        if fails.value:
            raise unwritable_error(path, OSError(errno.ENOSPC, "full"))
        write_durably(path, content)

    return failing


def test_call_that_cannot_be_saved_changes_no_node(server_process):
    fails = multiprocessing.get_context("fork").Value("b", 0)

    server_process.start(prepare=lambda: setattr(store, "write_durably", refusing(fails, store.write_durably)))
    aws = Clients(server_process)
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": aws.ami, "InstanceType": "g5.xlarge"}
    (first,) = (row["InstanceId"] for row in aws.ec2.run_instances(**run)["Instances"])
    group = aws.ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    settle(server_process)
    aws.s3.put_object(Bucket="data", Key="k", Body=b"")  # saves that the node is up
    nodes = server_process.home.root / "nodes.json"
    before = nodes.read_text()
    rule = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    fails.value = 1
    calls = (
        lambda: aws.ec2.terminate_instances(InstanceIds=[first]),
        lambda: aws.ec2.stop_instances(InstanceIds=[first]),
        lambda: aws.ec2.run_instances(**run),
        lambda: aws.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=rule),
        lambda: aws.s3.create_bucket(Bucket="more"),
    )
    for call in calls:
        with pytest.raises(ClientError, match=f"{REFUSAL}.*had no effect"):
            call()
    time.sleep(0.3)  # for nodes to end or to boot, were they to
    assert nodes.read_text() == before
    assert [(node.instance_id, node.state) for node in client.nodes(server_process.cloud)] == [(first, "running")]
    fails.value = 0
    aws.s3.create_bucket(Bucket="more")
    aws.ec2.terminate_instances(InstanceIds=[first])
    settle(server_process)
    assert client.nodes(server_process.cloud) == ()


def test_region_is_readable_although_its_state_cannot_be_saved(server_process):
    fails = multiprocessing.get_context("fork").Value("b", 0)
    server_process.start(prepare=lambda: setattr(store, "write_durably", refusing(fails, store.write_durably)))
    ec2 = server_process.aws("ec2")
    fails.value = 1
    shown = ec2.describe_vpcs()["Vpcs"]
    assert shown
    assert ec2.describe_vpcs()["Vpcs"] == shown
    fails.value = 0
    ec2.create_placement_group(GroupName="g", Strategy="cluster")
    server_process.end(signal.SIGKILL)
    server_process.start()
    assert ec2.describe_vpcs()["Vpcs"] == shown
