"""Checkpoint uploads to a real S3 endpoint with credentials from the metadata service."""

import fcntl
import json
import os
import secrets
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import boto3
import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from tests.system.data.conftest import served

pytestmark = pytest.mark.system

MIB = 1 << 20


class Metadata(ThreadingHTTPServer):
    """A metadata service (IMDSv2 only) that serves the credentials of a role."""

    daemon_threads = True

    def __init__(self, cloud: client.RehearsalClient, role: dict) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.role, self.cloud, self.has_role = role, cloud, True
        self.taken = False


class _Answers(BaseHTTPRequestHandler):
    server: Metadata

    def log_message(self, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        self._say(200, "token")

    def do_GET(self) -> None:
        roles = "/latest/meta-data/iam/security-credentials/"
        if self.headers.get("X-aws-ec2-metadata-token") != "token":
            self._say(401, "")
        elif self.path == roles and self.server.has_role:
            self._say(200, "nodes")
        elif self.path == roles + "nodes":
            self._say(200, json.dumps(self.server.role))
        elif self.path.endswith("spot/instance-action") and self.server.taken:
            self._say(200, "{}")
        else:
            self._say(404, "")

    def _say(self, code: int, text: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("home")).ensure()
    yield client.ensure_running(home, SystemClock())
    client.stop(home)


@pytest.fixture(scope="module")
def s3(cloud):
    keys = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    made = boto3.client("s3", region_name="us-east-1", endpoint_url=cloud.url, **keys)
    made.create_bucket(Bucket="kept")
    return made


@pytest.fixture
def metadata(cloud):
    role = {
        "AccessKeyId": cloud.access_key_id,
        "SecretAccessKey": cloud.secret_access_key,
        "Token": "for show",
        "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)),
    }
    server = Metadata(cloud, role)
    with served(server):
        yield server


class Run:
    """A run directory whose run stays active until `end` is called."""

    def __init__(self, run_agent, folder, cloud, metadata) -> None:
        self.run_agent, self.dir, self.work = run_agent, folder / "run", folder / "run" / "work" / "ckpt"
        self.work.mkdir(parents=True)
        self.environment = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_port}"}
        self.prefix = secrets.token_hex(4)
        self.spec = {
            "run_dir": str(self.dir), "source": str(self.work), "bucket": "kept", "prefix": self.prefix,
            "region": "us-east-1", "endpoint": cloud.url, "every_s": 0.2,
        }  # fmt: skip
        self._status("running")

    def _status(self, state: str) -> None:
        agent = {"pid": os.getpid(), "started": _started(os.getpid()), "boot": _boot()}
        known = {"state": state, "agent": agent, "ranks": [], "node_index": 0, "first_failure": None, "run_id": "r"}
        known["lost_s"] = 60
        (self.dir / "status.new").write_text(json.dumps(known))
        (self.dir / "status.new").rename(self.dir / "status.json")

    def keep(self, *, ok: bool = True) -> dict:
        return self.run_agent("keep", self.spec, ok=ok, **self.environment)

    def end(self) -> None:
        self._status("succeeded")

    def kept(self, *, ok: bool = True, name: str = "keep") -> dict:
        return self.run_agent("kept", {"run_dir": str(self.dir), "name": name}, ok=ok, **self.environment)


def _started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def run(run_agent, tmp_path, cloud, metadata):
    one = Run(run_agent, tmp_path, cloud, metadata)
    yield one
    one.end()


def there(s3, run: Run) -> dict[str, int]:
    found = s3.list_objects_v2(Bucket="kept", Prefix=run.prefix).get("Contents") or ()
    return {one["Key"].removeprefix(f"{run.prefix}/"): one["Size"] for one in found}


def until(holds, limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_checkpoints_upload_during_run_and_remainder_at_end(run, s3):
    assert run.keep()["started"] is True
    assert run.keep()["started"] is False
    (run.work / "epoch-1.pt").write_bytes(b"1" * 1000)
    (run.work / "deep").mkdir()
    (run.work / "deep" / "a b+ü.pt").write_bytes(b"2" * 10)
    (run.work / "epoch-2.pt.tmp").write_bytes(b"half")
    until(lambda: len(there(s3, run)) == 2)
    assert there(s3, run) == {"epoch-1.pt": 1000, "deep/a b+ü.pt": 10}
    (run.work / "epoch-2.pt.tmp").rename(run.work / "epoch-2.pt")
    (run.work / "epoch-1.pt").write_bytes(b"1" * 2000)
    run.end()
    assert run.kept() == {"files": 3, "bytes": 2014}
    assert there(s3, run) == {"epoch-1.pt": 2000, "deep/a b+ü.pt": 10, "epoch-2.pt": 4}


def test_large_checkpoint_upload_resumes_multipart_upload(run, s3):
    content = os.urandom(MIB) * 70
    (run.work / "big.pt").write_bytes(content)
    upload = s3.create_multipart_upload(Bucket="kept", Key=f"{run.prefix}/big.pt")["UploadId"]
    part = s3.upload_part(
        Bucket="kept", Key=f"{run.prefix}/big.pt", UploadId=upload, PartNumber=1, Body=content[: 32 * MIB]
    )
    stat = (run.work / "big.pt").stat()
    known = {"seen": [stat.st_size, stat.st_mtime_ns], "upload": upload, "parts": {"1": part["ETag"]}}
    # As a node leaves it whose process was killed after the first part.
    (run.dir / "keep.json").write_text(json.dumps({"spec": run.spec, "files": {"big.pt": known}, "failed": {}}))
    run.end()
    assert run.kept() == {"files": 1, "bytes": len(content)}
    assert s3.get_object(Bucket="kept", Key=f"{run.prefix}/big.pt")["Body"].read() == content
    assert not s3.list_multipart_uploads(Bucket="kept").get("Uploads")


def repaired(run, name):
    """Correct the bucket in the saved state, under its lock: the upload process may still be writing it."""
    with (run.dir / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads((run.dir / f"{name}.json").read_text())
        state["spec"]["bucket"] = "kept"
        (run.dir / f"{name}.json").write_text(json.dumps(state))


def test_failed_checkpoint_upload_is_reported_and_retried(run, s3):
    run.spec["bucket"] = "nobodys"
    run.keep()
    (run.work / "epoch-1.pt").write_bytes(b"1")
    run.end()
    answer = run.kept(ok=False)
    assert f"s3://nobodys/{run.prefix}/epoch-1.pt: 404 NoSuchBucket" in answer["error"]
    repaired(run, "keep")
    assert run.kept() == {"files": 1, "bytes": 1}


def test_outputs_are_uploaded_only_after_run_ends(run, s3):
    run.spec |= {"name": "outputs", "source": str(run.work.parent), "at_end": True, "patterns": ["ckpt", r".*\.csv"]}
    run.keep()
    (run.work / "deep").mkdir()
    for name in ("a.txt", "deep/b.txt", "../figures.csv", "../figures.txt"):
        (run.work / name).write_bytes(b"1")
    (run.work / "deep" / "link").symlink_to("b.txt")
    assert run.keep()["started"] is False
    other = {**run.spec, "name": "keep", "source": str(run.work), "prefix": f"side-{run.prefix}", "at_end": False}
    run.run_agent("keep", {**other, "patterns": []}, **run.environment)
    # Checkpoints of the same run are up, so outputs have had the time.
    until(lambda: s3.list_objects_v2(Bucket="kept", Prefix=other["prefix"])["KeyCount"] == 2)
    assert there(s3, run) == {}
    run.end()
    until(lambda: len(there(s3, run)) == 3)  # without a request, because the caller may be offline
    assert run.kept(name="outputs") == {"files": 3, "bytes": 3}
    assert there(s3, run) == {"ckpt/a.txt": 1, "ckpt/deep/b.txt": 1, "figures.csv": 1}


def test_failed_output_upload_is_reported_and_retried(run, s3):
    run.spec |= {"name": "outputs", "source": str(run.work.parent), "at_end": True, "patterns": ["ckpt"]}
    run.spec["bucket"] = "nobodys"
    run.keep()
    (run.work / "a.txt").write_bytes(b"1")
    run.end()
    answer = run.kept(ok=False, name="outputs")
    assert answer["error"].startswith(f"1 output file could not be uploaded: s3://nobodys/{run.prefix}/ckpt/a.txt: 404")
    repaired(run, "outputs")
    assert run.kept(name="outputs") == {"files": 1, "bytes": 1}


def test_checkpoint_upload_fails_early_without_iam_role(run, metadata):
    metadata.has_role = False
    answer = run.keep(ok=False)
    assert (answer["code"], answer["error"]) == ("no-role", "this node has no IAM role")
