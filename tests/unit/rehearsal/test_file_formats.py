"""Files of a rehearsal cloud: without a format number they are format 1, and newer formats are rejected by name.

`format_1/` contains one frozen file of each kind as written by version 0.1.0 and later: do not change them.
"""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.errors import NewerFormatError, RehearsalError, StateError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.layout import FAILURE_FORMAT, DocumentFormat, RehearsalFiles
from cloudgpu.rehearsal.nodes import host, record
from cloudgpu.rehearsal.nodes.images import Images
from cloudgpu.rehearsal.nodes.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import NodeSpec, RoleCredentials
from cloudgpu.rehearsal.server import main, process, sigv4
from cloudgpu.rehearsal.server.sigv4 import AccessKey, Keyring
from cloudgpu.rehearsal.simulated_time import SimulatedTime
from tests.manual_clock import ManualClock

NOW = datetime(2026, 11, 25, tzinfo=UTC)
KEYS = Keyring(
    AccessKey("AKIAAAAAAAAAAAAAAAAA", "secret of the caller"), AccessKey("AKIABBBBBBBBBBBBBBBB", "secret of the role")
)
CREDENTIALS = RoleCredentials("AKIABBBBBBBBBBBBBBBB", "secret of the role", "token", NOW.replace(hour=12))
RECORD = record.SimulatedNodeRecord(
    spec=NodeSpec(
        instance_id="i-0a1b2c3d4e5f60718", instance_type="p3dn.24xlarge", region="us-east-1", zone="us-east-1c",
        image_id="ami-0123456789abcdef0", address="127.77.12.2", user="ubuntu",
        authorized_keys=(f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43} cloudgpu",),
        user_data=b"#!/bin/sh\n\x00\xff", gpu="Tesla V100-SXM2-32GB", gpus=8, gpu_memory_mib=32768, efa_interfaces=1,
        spot=True, ssh_open=True, egress=False, role="cloudgpu-lab", mountable=(("fs-0123:/", "fs-0123"),),
    ),
    address="127.77.12.2", port=2222, metadata_port=1338, host_key="SHA256:jbZvS2yJ2Z4Oq0gZ1h5S2sM7Lr4k3p0yQ9x8w7v6u5t",
    isolation="cage", state="running", scripts_done=True, booted=True, pid=4711, pid_started=98765,
    timers=(record.Timer("cloudgpu-expiry", 1795687200.0, ("systemctl", "poweroff")),),
    mounted=(Mounted("/data", "fs-0123", read_only=True),), installed=("s3fs", "nvidia-driver-570"),
    spot_end_epoch_s=1795680120.0, rebalance_epoch_s=1795680000.0,
)  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """A rehearsal cloud's directory that contains a copy of every frozen file."""
    shutil.copytree(Path(__file__).with_name("format_1"), tmp_path / "rehearsal")
    return RehearsalFiles(tmp_path / "rehearsal")


def test_format_1_node_record_is_read(files):
    assert record.load(files.root / "record.json") == RECORD


def test_format_1_image_packages_are_read_and_extended(files):
    images = Images(files.root / "images.json")
    assert images.installed("ami-0123456789abcdef0") == ("s3fs", "nvidia-driver-570")
    images.store("ami-2", ("x",))
    assert images.installed("ami-0123456789abcdef0") == ("s3fs", "nvidia-driver-570")
    assert images.installed("ami-2") == ("x",)


def test_format_1_node_host_state_is_read(files):
    assert host.load_state(files.root / "host.json") == host.HostState(3600.0, CREDENTIALS)


def test_format_1_access_keys_are_read(files):
    assert sigv4.load(files.keys) == KEYS


def test_format_1_market_table_is_read(files):
    market = Market(files.market)
    assert market.capacity_of("us-east-1c", "p3dn.24xlarge", "on-demand") == 0
    assert market.quota_of("us-east-1", "p", "on-demand") == 96
    assert market.price_of("us-east-1", "p3dn.24xlarge", "on-demand") == Decimal("29.5")


def test_format_1_simulated_time_is_read(files):
    assert SimulatedTime(files.time, ManualClock(NOW)).now() == NOW + timedelta(hours=1)


def test_format_1_endpoint_is_read(files):
    cloud = client._recorded(files)
    assert cloud == client.RehearsalClient(
        "http://127.0.0.1:40123", KEYS.caller.access_key_id, KEYS.caller.secret_access_key, pid=4711
    )
    assert client.saved_key_id(files) == KEYS.caller.access_key_id


def test_format_1_server_failure_is_read(files):
    error = process.start_error(files)
    assert (error.message, error.hint) == ("the disk is full", "free some space")


READERS: dict[str, Callable[[RehearsalFiles], object]] = {
    "record.json": lambda files: record.load(files.root / "record.json"),
    "images.json": lambda files: Images(files.root / "images.json").installed("ami-1"),
    "host.json": lambda files: host.load_state(files.root / "host.json"),
    "keys.json": lambda files: sigv4.load(files.keys),
    "market.json": lambda files: Market(files.market),
    "time.json": lambda files: SimulatedTime(files.time, ManualClock(NOW)).now(),
    "endpoint.json": client._recorded,
    "failure.json": process.start_error,
}
WRITERS: dict[str, Callable[[RehearsalFiles], object]] = {
    "record.json": lambda files: record.save(files.root / "record.json", RECORD),
    "images.json": lambda files: Images(files.root / "images.json").store("ami-2", ("x",)),
    "host.json": lambda files: host.save_state(files.root / "host.json", host.HostState(3600.0, CREDENTIALS)),
    "keys.json": lambda files: sigv4.write(files.keys, KEYS),
    "market.json": lambda files: Market(files.market).put_prices({"*/p3dn.24xlarge/on-demand": "29.5"}),
    "time.json": lambda files: SimulatedTime(files.time, ManualClock(NOW)).advance(0),
    "failure.json": lambda files: main._save_failure(files, StateError("the disk is full", hint="free some space")),
}


def rewrite(path, **changes):
    """Change values of a file, and return its new content."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path.read_bytes()


def test_every_format_1_file_has_a_reader(files):
    assert {path.name for path in files.root.iterdir()} == set(READERS)


@pytest.mark.parametrize("name", WRITERS)
def test_written_file_has_a_format_number_and_unchanged_values(files, name):
    before = json.loads((files.root / name).read_text())
    WRITERS[name](files)
    after = json.loads((files.root / name).read_text())
    if name == "images.json":
        assert after.pop("ami-2") == ["x"]
    assert after == {"format": 1, **before}
    assert next(iter(after)) == "format"


@pytest.mark.parametrize("name", READERS)
def test_newer_file_format_is_rejected_and_file_unchanged(files, name):
    path = files.root / name
    content = rewrite(path, format=2)
    with pytest.raises(NewerFormatError, match=r"has format 2, but this version .* reads formats up to 1$") as caught:
        READERS[name](files)
    assert str(path) in caught.value.message
    assert "upgrade" in caught.value.hint
    assert path.read_bytes() == content
    assert not path.with_suffix(".damaged").exists()


def test_access_keys_of_a_newer_format_are_not_repaired(files):
    content = rewrite(files.keys, format=2)
    with pytest.raises(NewerFormatError):
        sigv4.repair(files.keys, "")
    assert files.keys.read_bytes() == content


def test_endpoint_lookup_fails_if_keys_have_a_newer_format(files):
    rewrite(files.keys, format=2)
    with pytest.raises(NewerFormatError):
        client._recorded(files)


def test_newer_node_record_stops_the_host_unlike_a_damaged_record(tmp_path):
    for name in ("i-1", "i-2", "i-3"):
        (tmp_path / name).mkdir()
        record.save(tmp_path / name / "record.json", RECORD)
    (tmp_path / "i-1" / "record.json").write_text("rubbish")
    (tmp_path / "i-2" / "record.json").unlink()
    record.refuse_newer(tmp_path)
    rewrite(tmp_path / "i-3" / "record.json", format=7)
    with pytest.raises(NewerFormatError, match=r"\(node record\) has format 7"):
        record.refuse_newer(tmp_path)


@pytest.mark.parametrize("number", [0, -1, True, 1.0, "1", None, [], 10**400])
def test_invalid_format_number_is_reported_as_damage(files, number):
    rewrite(files.keys, format=number)
    with pytest.raises(StateError) as caught:
        sigv4.load(files.keys)
    assert not isinstance(caught.value, NewerFormatError)


def test_document_format_reads_current_and_older_files(tmp_path):
    path, second = tmp_path / "x.json", DocumentFormat("thing", 2)
    path.write_bytes(DocumentFormat("thing").encode({"a": 1}))
    assert second.read(path) == {"a": 1}
    path.write_bytes(second.encode({"a": [2]}))
    assert second.read(path) == {"a": [2]}
    with pytest.raises(NewerFormatError, match=r"\(thing\) has format 2"):
        DocumentFormat("thing").read(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="expected a mapping, got list"):
        second.read(path)
    with pytest.raises(OSError, match="larger than"):
        second.read(path, limit=1)


def test_server_failure_without_hint_falls_back_to_the_log(files):
    files.failure.write_bytes(FAILURE_FORMAT.encode({"message": "x"}))
    files.log.write_text("the last line\n")
    error = process.start_error(files)
    assert isinstance(error, RehearsalError)
    assert "the last line" in error.message
