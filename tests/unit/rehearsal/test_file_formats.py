"""The files of a rehearsal cloud that carry no format number, as version 0.1.0 and its successors wrote them, are read.

`format_1/` holds one file of each kind, frozen: do not rewrite them when a format changes.
"""

import shutil
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from cloudgpu.clock import ManualClock
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.aws_api.ec2.capacity_tables import Market
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes import host_state, record
from cloudgpu.rehearsal.nodes.boot.baked_images import Images
from cloudgpu.rehearsal.nodes.mounts.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import RoleCredentials
from cloudgpu.rehearsal.server import access_keys
from cloudgpu.rehearsal.server.access_keys import AccessKey, Keyring
from cloudgpu.rehearsal.simulated_time import SimulatedTime

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


def test_the_record_of_a_node(files):
    assert record.load(files.root / "record.json") == RECORD


def test_the_packages_of_images(files):
    images = Images(files.root / "images.json")
    assert images.installed("ami-0123456789abcdef0") == ("s3fs", "nvidia-driver-570")
    images.keep("ami-2", ("x",))
    assert images.installed("ami-0123456789abcdef0") == ("s3fs", "nvidia-driver-570")
    assert images.installed("ami-2") == ("x",)


def test_the_clock_and_the_credentials_of_the_node_host(files):
    assert host_state.load(files.root / "host.json") == host_state.HostState(3600.0, CREDENTIALS)


def test_the_keys(files):
    assert access_keys.load(files.keys) == KEYS


def test_the_market(files):
    market = Market(files.market)
    assert market.capacity_of("us-east-1c", "p3dn.24xlarge", "on-demand") == 0
    assert market.quota_of("us-east-1", "p", "on-demand") == 96
    assert market.price_of("us-east-1", "p3dn.24xlarge", "on-demand") == Decimal("29.5")


def test_the_time(files):
    assert SimulatedTime(files.time, ManualClock(NOW)).now() == NOW + timedelta(hours=1)


def test_the_endpoint(files):
    cloud = client._recorded(files)
    assert cloud == client.RehearsalClient(
        "http://127.0.0.1:40123", KEYS.caller.access_key_id, KEYS.caller.secret_access_key, pid=4711
    )
    assert client.saved_key_id(files) == KEYS.caller.access_key_id


def test_the_failure_of_a_server(files):
    error = client._start_error(files)
    assert (error.message, error.hint) == ("the disk is full", "free some space")
