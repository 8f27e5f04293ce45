"""The adapter over AWS: how often it asks, what it refuses, and how it goes on when one region is in trouble."""

import io
import urllib.request
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.aws.ec2.tagged_types import GLOBAL, FoundResource
from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.api_log import ApiCallLog
from cloudgpu.backends.aws import cloud, public_address, regions
from cloudgpu.backends.aws.cloud import AwsCloud, CloudTarget
from cloudgpu.clock import ManualClock
from cloudgpu.errors import CloudError, ConnectError, TeardownError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.state.cluster_and_run_records import ClusterRecord

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
IDS = ("i-b", "i-a", "i-c")
RECORD = ClusterRecord(
    "demo", "t", "ann", "vision", "plain", "aws", "1", "", NOON, NOON, "up", region="us-east-1", gpu="V100"
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    region: str = "us-east-1"
    aws_profile: str = ""
    ssh_user: str = "ubuntu"
    ssh_cidr: str = ""
    reach: str = "direct"
    bastion: str = ""
    boot_seconds: int = 600


def instance(instance_id, state="running", **more):
    base = Instance(instance_id, "p3dn.24xlarge", "us-east-1c", state, "203.0.113.7", "10.0.0.7", NOON, {}, (), "")
    return replace(base, **more)


@pytest.fixture
def aws(monkeypatch):
    """A cloud whose AWS is three dictionaries."""

    state = SimpleNamespace(
        consoles=dict.fromkeys(IDS, 0),
        states=dict.fromkeys(IDS, "running"),
        access_details=0,
        released=[],
        broken={},
        connected=[],
    )

    def describe(_clients, ids):
        return tuple(instance(one, state.states[one], reason_text="no host left") for one in ids)

    def fingerprints(_clients, instance_id):
        state.consoles[instance_id] += 1
        return ("SHA256:x",) if state.consoles[instance_id] > 1 or instance_id == "i-a" else ()

    def release(region, found, _clock):
        state.released.append((region, tuple(one.id for one in found)))
        if region in state.broken:
            raise state.broken[region]

    def reach(found, private):
        state.private = private
        state.access_details += 1
        return {one.id: ("203.0.113.7", 22) for one in found}

    def connect(_endpoint, region, _profile, on_call):
        state.connected.append(region)
        return SimpleNamespace(in_region=lambda other: other)

    monkeypatch.setattr(cloud, "connect", connect)
    monkeypatch.setattr(cloud.instances, "describe", describe)
    monkeypatch.setattr(cloud.host_keys, "fingerprints", fingerprints)
    monkeypatch.setattr(regions.tag_search, "release", release)
    clock = ManualClock(NOON)
    state.cloud = AwsCloud(CloudTarget("aws", CloudEndpoint(), ""), reach, Settings(), clock, ApiCallLog(None, clock))
    return state


def test_a_console_is_read_until_it_has_shown_its_key_and_not_again(aws):
    inventory = aws.cloud.inventory(RECORD, IDS, lambda _: None)
    assert [node.instance_id for node in inventory.nodes] == list(IDS)
    assert [node.index for node in inventory.nodes] == [0, 1, 2]
    assert aws.consoles == {"i-b": 2, "i-a": 1, "i-c": 2}
    assert aws.access_details == 2  # once a poll, however many nodes there are


@pytest.mark.parametrize(
    ("way", "private", "jumps"),
    [
        ("", set(), [None, None, None]),
        ("elastic", set(), [None, None, None]),
        ("nat", {"i-a", "i-c"}, [None, 0, 0]),
        ("private", {"i-a", "i-b", "i-c"}, [None, None, None]),
    ],
)
def test_nodes_without_a_public_address_are_reached_as_the_program_has_it(aws, way, private, jumps):
    record = replace(RECORD, config={"publicAddress": way})
    inventory = aws.cloud.inventory(record, IDS, lambda _: None)
    assert aws.private == private
    assert [node.jump for node in inventory.nodes] == jumps
    assert Inventory.from_json(inventory.as_json()) == inventory


def test_an_instance_that_ends_before_it_is_reached_is_named_with_its_reason(aws):
    aws.states["i-c"] = "shutting-down"
    with pytest.raises(CloudError, match="i-c changed to shutting-down before it was reachable: no host left"):
        aws.cloud.inventory(RECORD, IDS, lambda _: None)


def test_trouble_in_one_region_does_not_spare_the_others(aws):
    found = [FoundResource("role", "cloudgpu-demo", GLOBAL, "", {})]
    found += [FoundResource("volume", f"vol-{region}", region, "", {}) for region in ("us-east-1", "eu-west-1")]
    aws.broken = {"eu-west-1": TeardownError("1 of 1 could not be ended", left=["vol-eu-west-1"])}
    with pytest.raises(TeardownError) as caught:
        aws.cloud.release(found)
    assert caught.value.left == ("vol-eu-west-1",)
    # What belongs to no region goes last, and once.
    assert len(aws.connected) == 1  # a role that asks for a second factor asks once
    assert sorted(aws.released[:2]) == [("eu-west-1", ("vol-eu-west-1",)), ("us-east-1", ("vol-us-east-1",))]
    assert aws.released[2:] == [("us-east-1", ("cloudgpu-demo",))]


@pytest.mark.parametrize("answer", [b"2001:db8::1\n", b"<html>", b""])
def test_only_one_ipv4_address_is_ever_let_in(monkeypatch, answer):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(answer))
    with pytest.raises(ConnectError):
        public_address.own_address()


def test_the_callers_address_is_a_range_of_one(monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"203.0.113.9\n"))
    assert public_address.own_address() == "203.0.113.9/32"
