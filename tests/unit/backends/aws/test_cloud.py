"""The AWS adapter: how often it queries, what it rejects, and how it handles a failing region."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.aws.ec2.ssh_access import ConsoleOutput
from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws import account, new_nodes
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.cloud import GLOBAL, TaggedResource
from cloudgpu.errors import AuthError, CloudError, ConnectError, TeardownError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.run.progress import Activity, Note
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import bad_server, cases
from tests.bad_http.server import http_response, raw_server
from tests.cluster_records import changed, cluster_record
from tests.manual_clock import ManualClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
IDS = ("i-b", "i-a", "i-c")
RECORD = cluster_record(
    name="demo", team="vision", created_at=NOON, expires_at=NOON, region="us-east-1", gpu="V100"
)  # fmt: skip


KIND = "SSH HOST KEY FINGERPRINTS-----"
BLOCK = f"-----BEGIN {KIND}\n256 SHA256:{'x' * 43} root@ip (ED25519)\n-----END {KIND}\n"


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
    """A cloud with AWS replaced by dictionaries."""

    state = SimpleNamespace(
        consoles=dict.fromkeys(IDS, 0),
        states=dict.fromkeys(IDS, "running"),
        access_details=0,
        released=[],
        broken={},
        nitro=True,
        silent=False,
        addressed=True,
        connected=[],
    )

    def describe(_clients, ids):
        return tuple(
            instance(instance_id, state.states[instance_id], reason_text="no host left") for instance_id in ids
        )

    def read_console(_clients, instance_id):
        state.consoles[instance_id] += 1
        printed = state.consoles[instance_id] > 1 or instance_id == "i-a"
        return ConsoleOutput(BLOCK if printed and not state.silent else "", live=state.nitro)

    def release(region, found, _clock):
        state.released.append((region, tuple(resource.id for resource in found)))
        if region in state.broken:
            raise state.broken[region]

    def reach(found, private):
        state.private = private
        state.access_details += 1
        return {instance.id: ("203.0.113.7", 22) for instance in found if state.addressed or instance.id == "i-a"}

    def connect(_endpoint, region, *_rest):
        state.connected.append(region)
        return SimpleNamespace(in_region=lambda other: other)

    monkeypatch.setattr(account, "connect", connect)
    monkeypatch.setattr(new_nodes.instances, "describe", describe)
    monkeypatch.setattr(new_nodes.ssh_access, "read_console", read_console)
    monkeypatch.setattr(account.tag_search, "release", release)
    clock = state.clock = ManualClock(NOON)
    state.cloud = AwsAccount(CloudTarget("aws", CloudEndpoint(), ""), reach, Settings(), clock, ApiCallLog(None, clock))
    return state


def test_console_is_read_until_the_host_key_appears(aws):
    inventory = aws.cloud.new_nodes.inventory(RECORD, IDS, lambda _: None)
    assert [node.instance_id for node in inventory.nodes] == list(IDS)
    assert [node.index for node in inventory.nodes] == [0, 1, 2]
    assert aws.consoles == {"i-b": 2, "i-a": 1, "i-c": 2}
    assert aws.access_details == 2  # once per poll, regardless of the number of nodes


WAIT = "waiting for addresses and host keys"


def test_console_without_host_keys_fails_after_the_boot_limit(aws):
    aws.silent = True
    heard = []
    began = aws.clock.monotonic()
    with pytest.raises(CloudError) as caught:
        aws.cloud.new_nodes.inventory(RECORD, IDS, heard.append)
    assert caught.value.message == "after 10 min, no host key on the console: i-b, i-a, i-c"
    assert caught.value.nodes == (0, 1, 2)
    assert 600 < aws.clock.monotonic() - began < 620
    assert heard[0] == Activity(WAIT, done=0, total=3, unit="nodes", limit_s=600)
    assert heard[-1] == Activity(WAIT, finished=True)
    assert {type(event) for event in heard} == {Activity}


def test_missing_address_and_missing_host_key_are_told_apart(aws):
    aws.silent, aws.addressed = True, False
    with pytest.raises(CloudError, match="after 10 min, no address: i-b, i-c; no host key on the console: i-a"):
        aws.cloud.new_nodes.inventory(RECORD, IDS, lambda _: None)


def test_delayed_console_has_a_longer_limit_and_says_what_the_wait_is_for(aws):
    aws.silent, aws.nitro = True, False
    heard = []
    began = aws.clock.monotonic()
    with pytest.raises(CloudError) as caught:
        aws.cloud.new_nodes.inventory(RECORD, IDS, heard.append)
    assert 1800 < aws.clock.monotonic() - began < 1820
    assert caught.value.message == (
        "after 30 min, no host key on the console: i-b, i-a, i-c "
        "(EC2 shows the console of p3dn.24xlarge with a delay: raise boot_seconds)"
    )
    (note,) = [event for event in heard if isinstance(event, Note)]
    assert heard[-2] == Activity(WAIT, done=0, total=3, unit="nodes", limit_s=1800)
    assert note.text.startswith("waiting up to 30 min for the host keys: EC2 shows the console of p3dn.24xlarge only")


def test_host_keys_on_a_delayed_console_are_pinned(aws):
    aws.nitro = False
    inventory = aws.cloud.new_nodes.inventory(RECORD, IDS, lambda _: None)
    assert {node.host_keys for node in inventory.nodes} == {("SHA256:" + "x" * 43,)}


@pytest.mark.parametrize(
    ("way", "private", "jumps"),
    [
        ("", set(), [None, None, None]),
        ("elastic", set(), [None, None, None]),
        ("nat", {"i-a", "i-c"}, [None, 0, 0]),
        ("private", {"i-a", "i-b", "i-c"}, [None, None, None]),
    ],
)
def test_public_address_mode_determines_how_nodes_are_reached(aws, way, private, jumps):
    record = changed(RECORD, config={"publicAddress": way})
    inventory = aws.cloud.new_nodes.inventory(record, IDS, lambda _: None)
    assert aws.private == private
    assert [node.jump for node in inventory.nodes] == jumps
    assert Inventory.from_json(inventory.as_json()) == inventory


def test_instance_that_ends_before_becoming_reachable_is_reported(aws):
    aws.states["i-c"] = "shutting-down"
    with pytest.raises(CloudError, match="i-c changed to shutting-down before it was reachable: no host left"):
        aws.cloud.new_nodes.inventory(RECORD, IDS, lambda _: None)


def test_failed_region_does_not_stop_release_in_other_regions(aws):
    found = [TaggedResource("role", "cloudgpu-demo", GLOBAL, "", {})]
    found += [TaggedResource("volume", f"vol-{region}", region, "", {}) for region in ("us-east-1", "eu-west-1")]
    aws.broken = {"eu-west-1": TeardownError("1 of 1 could not be ended", left=["vol-eu-west-1"])}
    with pytest.raises(TeardownError) as caught:
        aws.cloud.release(found)
    assert caught.value.left == ("vol-eu-west-1",)
    # Global resources are released last and once.
    assert len(aws.connected) == 1  # a role with MFA prompts only once
    assert sorted(aws.released[:2]) == [("eu-west-1", ("vol-eu-west-1",)), ("us-east-1", ("vol-us-east-1",))]
    assert aws.released[2:] == [("us-east-1", ("cloudgpu-demo",))]


@pytest.mark.parametrize("answer", [b"2001:db8::1\n", b"<html>", b""])
def test_caller_address_that_is_not_ipv4_is_rejected(monkeypatch, answer):
    with raw_server(lambda _request: [http_response(body=answer)]) as server:
        monkeypatch.setattr(new_nodes, "_ADDRESS_SERVICE", server.url)
        with pytest.raises(ConnectError):
            new_nodes.own_address()


@pytest.mark.parametrize("bad", cases())
def test_misbehaving_address_service_is_a_connect_error(monkeypatch, bad):
    monkeypatch.setattr(new_nodes, "_TIMEOUT_S", 0.3)
    with bad_server(bad) as server:
        monkeypatch.setattr(new_nodes, "_ADDRESS_SERVICE", server.url)
        assert isinstance(call_within_limits(new_nodes.own_address), ConnectError)


def test_caller_address_is_a_single_address_range(monkeypatch):
    with raw_server(lambda _request: [http_response(body=b"203.0.113.9\n")]) as server:
        monkeypatch.setattr(new_nodes, "_ADDRESS_SERVICE", server.url)
        assert new_nodes.own_address() == "203.0.113.9/32"


def test_failure_to_fetch_credentials_is_tried_again_only_after_a_moment(aws, monkeypatch):
    """A wrong MFA code must not make every call that waits for the session prompt again."""
    attempts = []

    def fail(_endpoint, region, *_rest):
        attempts.append(region)
        raise AuthError("wrong MFA code", code="AccessDenied")

    monkeypatch.setattr(account, "connect", fail)
    for region in ("us-east-1", "eu-west-1", "us-east-1"):
        with pytest.raises(AuthError, match="wrong MFA code"):
            aws.cloud.session(region)
    assert attempts == ["us-east-1"]
    aws.clock.sleep(2)
    with pytest.raises(AuthError):
        aws.cloud.session("us-east-1")
    assert attempts == ["us-east-1", "us-east-1"]
