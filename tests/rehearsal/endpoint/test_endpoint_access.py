"""Authentication, injected faults, presigned URLs, and starting and stopping the server process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cloudgpu.cli.commands.rehearsal import env_lines
from cloudgpu.errors import RehearsalError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles

pytestmark = pytest.mark.rehearsal


def status_of(request: urllib.request.Request | str) -> int:
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as err:
        return int(err.code)


def test_requests_without_valid_credentials_or_origin_are_rejected(rig):
    def stranger(key: str, secret: str):
        return boto3.client(
            "ec2", "us-east-1", endpoint_url=rig.cloud.url, aws_access_key_id=key, aws_secret_access_key=secret
        )

    with pytest.raises(ClientError) as err:
        stranger("AKIAAAAAAAAAAAAAAAAA", "x").describe_vpcs()
    assert err.value.response["Error"]["Code"] == "AuthFailure"
    with pytest.raises(ClientError) as err:
        stranger(rig.cloud.access_key_id, "wrong").describe_vpcs()
    assert err.value.response["Error"]["Code"] == "SignatureDoesNotMatch"
    assert status_of(f"{rig.cloud.url}/?Action=RunInstances&Version=2016-11-15") == 403
    assert status_of(f"{rig.cloud.url}/_cloudgpu/stop") == 403
    assert status_of(f"{rig.cloud.url}/moto-api/reset") == 403
    assert status_of(urllib.request.Request(rig.cloud.url, headers={"Origin": "http://x"})) == 403
    assert status_of(urllib.request.Request(rig.cloud.url, headers={"Host": "x.example"})) == 403


def test_node_role_credentials_are_accepted(rig):
    key = rig.server.keyring.role
    sts = boto3.client(
        "sts",
        "us-east-1",
        endpoint_url=rig.cloud.url,
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret_access_key,
        aws_session_token="simulated",
    )
    assert sts.get_caller_identity()["Account"] == "123456789012"


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_urls_download_objects_and_reject_tampering(rig, version):
    rig.aws("s3").create_bucket(Bucket="data")
    name = "a b/ü+%25?.bin"
    rig.aws("s3").put_object(Bucket="data", Key=name, Body=b"0123456789")
    url = rig.aws("s3", signature_version=version).generate_presigned_url(
        "get_object", Params={"Bucket": "data", "Key": name}, ExpiresIn=60
    )
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.read() == b"0123456789"
    part = urllib.request.Request(url, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(part, timeout=10) as answer:
        assert (answer.status, answer.read()) == (206, b"234")
    assert status_of(url.replace("Signature=", "Signature=A")) == 403
    assert status_of(url.replace("data/", "other/", 1)) == 403


def test_multipart_uploads_and_chunked_streams_store_whole_objects(rig, tmp_path):
    s3 = rig.aws("s3")
    s3.create_bucket(Bucket="data")
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(20 << 20))
    s3.upload_file(str(source), "data", "big")
    s3.download_file("data", "big", str(back))
    assert back.read_bytes() == source.read_bytes()
    with source.open("rb") as file:
        s3.put_object(Bucket="data", Key="stream", Body=file, ChecksumAlgorithm="CRC32")
    assert s3.head_object(Bucket="data", Key="stream")["ContentLength"] == 20 << 20
    assert [row["Key"] for row in s3.list_objects_v2(Bucket="data")["Contents"]] == ["big", "stream"]


def test_mutating_call_can_be_dropped_before_or_after_its_effect(rig):
    def make(name: str) -> None:
        rig.ec2.create_placement_group(GroupName=name)

    client.put_faults(rig.cloud, [{"do": "drop", "mutating": True, "nth": 2, "phase": "before"}])
    make("a")
    with pytest.raises(BotoCoreError):
        make("b")
    client.put_faults(rig.cloud, [{"do": "drop", "mutating": True, "nth": 1, "phase": "after_effect"}])
    with pytest.raises(BotoCoreError):
        make("c")
    assert {row["name"] for row in client.list_resources(rig.cloud)["placement_groups"]} == {"a", "c"}
    assert client.faults(rig.cloud)["mutating_calls"] == 1


def test_scripted_errors_reach_the_client_in_aws_format(rig):
    rule = {"action": "RunInstances", "code": "RequestLimitExceeded", "message": "Slow <down>", "http": 503, "times": 1}
    client.put_faults(rig.cloud, [rule, {"service": "ssm", "code": "ThrottlingException", "message": "x", "http": 400}])
    with pytest.raises(ClientError) as err:
        rig.ec2.run_instances(MinCount=1, MaxCount=1)
    assert err.value.response["Error"] == {"Code": "RequestLimitExceeded", "Message": "Slow <down>"}
    with pytest.raises(ClientError) as err:
        rig.aws("ssm").get_parameter(Name="x")
    assert err.value.response["Error"]["Code"] == "ThrottlingException"
    with pytest.raises(RehearsalError, match="explode"):
        client.call(rig.cloud, "PUT", "faults", [{"do": "explode", "explode": 1}])


def test_held_call_does_not_block_other_calls(rig):
    client.put_faults(rig.cloud, [{"action": "CreatePlacementGroup", "do": "hold", "drop": True, "times": 1}])
    failed = threading.Event()

    def make() -> None:
        try:
            rig.ec2.create_placement_group(GroupName="held")
        except BotoCoreError:
            failed.set()

    thread = threading.Thread(target=make)
    thread.start()
    rig.until(lambda: client.faults(rig.cloud)["held"])
    rig.ec2.create_placement_group(GroupName="other")
    assert client.release(rig.cloud) == 1
    thread.join(10)
    assert failed.is_set()
    assert [row["name"] for row in client.list_resources(rig.cloud)["placement_groups"]] == ["other"]


def test_advance_moves_the_node_clock(rig):
    client.advance(rig.cloud, 3600)
    assert rig.host.advanced_s == 3600


def test_concurrent_launches_with_the_same_token_launch_once(rig):
    ami = rig.ami()
    ec2 = rig.aws("ec2", max_pool_connections=16)

    def run(number: int) -> str:
        token = f"t{number % 8}"
        row = ec2.run_instances(MinCount=2, MaxCount=2, ImageId=ami, InstanceType="g5.xlarge", ClientToken=token)
        return str(row["Instances"][0]["InstanceId"])

    with ThreadPoolExecutor(16) as pool:
        ids = set(pool.map(run, range(32)))
    assert len(ids) == 8
    assert len(client.list_resources(rig.cloud)["instances"]) == 16


def test_stop_request_shuts_down_server_with_running_instances(rig):
    rig.ec2.run_instances(MinCount=2, MaxCount=2, ImageId=rig.ami(), InstanceType="g5.xlarge")
    rig.server.request_stop()
    rig.until(lambda: client.find_running(rig.home) is None)


@pytest.fixture
def home(tmp_path):
    one = Home(tmp_path)
    yield one
    client.stop(one)


def test_concurrent_processes_start_a_single_server(home):
    code = (
        "import sys; from pathlib import Path; from cloudgpu.paths import Home; from cloudgpu.rehearsal import client; "
        "print(client.ensure_running(Home(Path(sys.argv[1]))).pid)"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    pids = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert len(pids) == 1
    assert client.status(home).cloud is not None


def test_server_does_not_inherit_ignored_signals(home):
    """A shell's `&` and `nohup` ignore signals; the server and its node processes must not inherit that."""
    code = (
        "import signal, sys; from pathlib import Path; from cloudgpu.paths import Home\n"
        "for one in (signal.SIGINT, signal.SIGHUP): signal.signal(one, signal.SIG_IGN)\n"
        "from cloudgpu.rehearsal import client; print(client.ensure_running(Home(Path(sys.argv[1]))).pid)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home.root)], capture_output=True, text=True, check=True)
    fields = dict(line.split(":\t") for line in Path(f"/proc/{done.stdout.strip()}/status").read_text().splitlines())
    ignored = int(fields["SigIgn"], 16)
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGHUP - 1)


def test_killed_server_restarts_on_the_same_address_with_its_state(home):
    first = client.ensure_running(home)
    s3 = boto3.client(
        "s3",
        "us-east-1",
        endpoint_url=first.url,
        aws_access_key_id=first.access_key_id,
        aws_secret_access_key=first.secret_access_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    s3.create_bucket(Bucket="data")
    os.kill(first.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the object that started it may wait for it as it is thrown away
        os.waitpid(first.pid, 0)
    assert client.find_running(home) is None
    again = client.ensure_running(home)
    assert (again.url, again.pid == first.pid) == (first.url, False)
    assert [row["Name"] for row in s3.list_buckets()["Buckets"]] == ["data"]


def test_server_chooses_another_port_if_recorded_port_is_in_use(home):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        files = RehearsalFiles.of(home)
        files.root.mkdir(parents=True)
        files.endpoint.write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "pid": 1}))
        cloud = client.ensure_running(home)
    assert not cloud.url.endswith(f":{port}")


def test_server_startup_failure_reports_its_cause(home):
    files = RehearsalFiles.of(home)
    files.root.mkdir(parents=True)
    files.market.write_text("{")
    with pytest.raises(RehearsalError, match="is damaged"):
        client.ensure_running(home)


def test_stop_without_a_server_returns_false(home):
    assert client.find_running(home) is None
    assert client.stop(home) is False
    assert client.status(home).cloud is None


def test_key_files_are_readable_only_by_the_owner(home):
    client.ensure_running(home)
    for path in (RehearsalFiles.of(home).keys, RehearsalFiles.of(home).endpoint, RehearsalFiles.of(home).log):
        assert path.stat().st_mode & 0o077 == 0
    assert RehearsalFiles.of(home).root.stat().st_mode & 0o077 == 0


def test_printed_environment_configures_an_unmodified_boto3_client(home):
    cloud = client.ensure_running(home)
    lines = "\n".join(env_lines(cloud))
    code = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    script = f'{lines}\nexec {sys.executable} -c "$1"'
    clean = {"PATH": os.environ["PATH"], "HOME": str(home.root)}
    done = subprocess.run(
        ["sh", "-c", script, "sh", code], env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "123456789012", done.stderr


def test_idle_server_exits_after_its_timeout(tmp_path):
    command = [sys.executable, "-m", "cloudgpu.rehearsal.server", "--home", str(tmp_path), "--idle-minutes", "0.01"]
    assert subprocess.run(command, timeout=60, capture_output=True, check=False).returncode == 0


def test_client_import_loads_neither_moto_nor_boto3():
    code = (
        "import sys; import cloudgpu.rehearsal.client; "
        "print([name for name in ('moto', 'boto3', 'botocore', 'asyncssh', 'werkzeug') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "[]"
