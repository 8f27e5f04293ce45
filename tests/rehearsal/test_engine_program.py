"""The direct engine, the real cluster program and the real handlers on a rehearsal cloud."""

import multiprocessing
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.resources import registry
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.clock import SystemClock
from cloudgpu.engine.base import Stack
from cloudgpu.engine.direct.engine import DirectEngine, JournalAccount
from cloudgpu.errors import BadRequestError, CapacityError, StateError
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.rehearsal,
    # the rehearsal server is meant to outlive whoever started it
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

CLUSTER = (
    "PlacementGroup",
    "KeyPair",
    "Role",
    "RolePolicy",
    "InstanceProfile",
    "SecurityGroup",
    "LaunchTemplate",
    "Fleet",
)
SCHEDULE_TYPES = ("Role", "RolePolicy", "ScheduleGroup", "Schedule", "Schedule")
TYPES = sorted(CLUSTER + SCHEDULE_TYPES)
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGcyZqYq0n1o0u8q9Ck4yQJ8P0Q0lq8m3yq8m3yq8m3y me"
IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"


class Site:
    """A state home, its rehearsal cloud, and the stack of one cluster."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.cloud = client.ensure_running(home, SystemClock())
        self.on_call = None
        self.events = []
        expiry = datetime.now(UTC) + timedelta(hours=2)
        self.config = {
            "cluster": "demo",
            "owner": "ada",
            "team": "vision",
            "run": "r-1",
            "expiresAt": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "token": "tok-1",
            "instanceType": "p3dn.24xlarge",
            "nodes": "2",
            "zone": "us-east-1c",
            "market": "on-demand",
            "publicKey": PUBLIC_KEY,
            "sshCidr": "127.0.0.1/32",
            "image": IMAGE,
            "diskGib": "100",
            "efaInterfaces": "1",
        }

    def clients(self, region="us-east-1"):
        endpoint = CloudEndpoint(self.cloud.url, self.cloud.access_key_id, self.cloud.secret_access_key)
        return connect(endpoint, region, on_call=self.on_call)

    def engine(self):
        sessions = {}
        tags = {
            f"cloudgpu:{name}": self.config[key]
            for name, key in {"cluster": "cluster", "owner": "owner", "team": "team", "run": "run"}.items()
        }
        tags |= {"cloudgpu:expires-at": self.config["expiresAt"], "cloudgpu:token": self.config["token"]}

        def clients_for(region):
            return sessions.setdefault(region, self.clients(region))

        return DirectEngine(
            clients_for=clients_for,
            handlers=registry,
            tags=tags,
            identity=JournalAccount("123456789012", "rehearsal"),
            clock=SystemClock(),
        )

    @property
    def stack(self):
        journal = self.home.cluster("demo").journal("us-east-1")
        return Stack("demo", "us-east-1", bundled_folder("infra"), self.config, journal)

    def up(self):
        return self.engine().up(self.stack, self.events.append)

    def destroy(self):
        self.engine().destroy(self.stack, self.events.append)

    def left(self):
        """Return the resources that the endpoint lists, and those that a tag search finds."""
        counted = {kind: rows for kind, rows in client.list_resources(self.cloud).items() if rows and kind != "buckets"}
        counted = {kind: [row for row in rows if "cloudgpu:cluster" in row["tags"]] for kind, rows in counted.items()}
        return {kind: rows for kind, rows in counted.items() if rows}, tag_search.find_tagged_resources(
            self.clients(), "demo"
        )


@pytest.fixture
def site(tmp_path: Path):
    home = Home(tmp_path / "home").ensure()
    yield Site(home)
    client.stop(home)


def test_repeated_up_and_refresh_change_nothing_and_down_deletes_all(site):
    preview = site.engine().preview(site.stack)
    assert sorted(step.type.rpartition(":")[2] for step in preview) == TYPES
    assert site.left() == ({}, ())
    applied = site.up()
    assert dict(applied.changes) == {"create": len(TYPES)}
    nodes = {node.instance_id: node for node in client.nodes(site.cloud)}
    assert sorted(applied.outputs["instanceIds"]) == sorted(nodes)
    assert {(node.cluster, node.zone, node.state) for node in nodes.values()} == {("demo", "us-east-1c", "running")}
    assert dict(site.up().changes) == {"same": len(TYPES)}
    refreshed = site.engine().refresh(site.stack)
    assert refreshed.outputs == applied.outputs
    assert dict(site.up().changes) == {"same": len(TYPES)}
    assert {step.operation for step in site.engine().preview(site.stack)} == {"same"}
    site.destroy()
    assert site.left() == ({}, ())
    site.engine().close(site.stack)


def test_up_without_capacity_succeeds_in_the_next_zone(site):
    client.put_capacity(site.cloud, {"us-east-1c/*/*": 1})
    with pytest.raises(CapacityError) as caught:
        site.up()
    assert caught.value.code
    assert client.list_resources(site.cloud)["instances"] == []
    site.config["zone"] = "us-east-1d"
    applied = site.up()
    assert applied.changes["create"] >= 1
    assert {node.zone for node in client.nodes(site.cloud)} == {"us-east-1d"}
    site.destroy()
    assert site.left() == ({}, ())


def test_changed_ssh_cidr_updates_the_security_group_in_place(site):
    site.up()
    site.config["sshCidr"] = "127.0.0.2/32"
    applied = site.up()
    assert applied.changes["update"] == 1
    groups = site.clients().client("ec2").describe_security_groups(GroupIds=[applied.outputs["securityGroupId"]])
    ranges = [r["CidrIp"] for rule in groups["SecurityGroups"][0]["IpPermissions"] for r in rule["IpRanges"]]
    assert ranges == ["127.0.0.2/32"]
    site.destroy()
    assert site.left() == ({}, ())


def test_invalid_setting_is_reported_before_any_resource_is_created(site):
    site.config["nodes"] = "two"
    with pytest.raises(BadRequestError, match=r"settings\.py:\d+: cloudgpu:nodes is 'two'"):
        site.up()
    assert site.left() == ({}, ())


def test_destroy_fails_and_keeps_the_journal_if_endpoint_is_unreachable(site):
    site.up()
    journal = site.stack.journal.read_bytes()
    client.stop(site.home)
    with pytest.raises(Exception, match=r"left|reached|connect"):
        site.destroy()
    assert site.stack.journal.read_bytes().startswith(journal)
    site.cloud = client.ensure_running(site.home, SystemClock())
    site.destroy()
    assert site.left() == ({}, ())


def test_journal_of_another_endpoint_is_rejected(site):
    site.up()
    other = DirectEngine(
        clients_for=site.clients,
        handlers=registry,
        tags={},
        identity=JournalAccount("123456789012", ""),
        clock=SystemClock(),
    )
    with pytest.raises(StateError, match="lists resources of account 123456789012 at rehearsal"):
        other.destroy(site.stack, site.events.append)
    site.destroy()


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Count the calls of an uninterrupted `up`."""
    home = Home(tmp_path_factory.mktemp("undisturbed") / "home").ensure()
    site, counted = Site(home), []
    site.on_call = lambda call: add_unless_repeated(counted, call)
    site.up()
    site.on_call = None
    site.destroy()
    client.stop(home)
    return len(counted)


def add_unless_repeated(calls, call):
    """Add a call unless it repeats a read.

    How often `up` polls, and in which order its threads send their calls, depends on the speed of the machine. The set
    of reads and the number of changes do not.
    """
    if not call.operation.startswith(("Describe", "Get", "List")) or call.operation not in calls:
        calls.append(call.operation)


def _up_and_be_killed(site, after):
    calls = []

    def count(call):
        add_unless_repeated(calls, call)
        if len(calls) >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    site.on_call = count
    site.up()


def _kill_after(site, after):
    child = multiprocessing.get_context("fork").Process(target=_up_and_be_killed, args=(site, after))
    child.start()
    child.join(100)
    return child.exitcode


@pytest.mark.parametrize(
    "share",
    [0.25, 0.5, 0.9, 0.97, *(pytest.param((part + 0.5) / 40, marks=pytest.mark.full) for part in range(40))],
)
def test_destroy_after_up_killed_between_calls_leaves_nothing(site, calls, share):
    """SIGKILL in the middle of `up`: a rerun creates nothing twice, and `destroy` leaves nothing."""
    after = max(1, round(share * calls))
    assert _kill_after(site, after) == -signal.SIGKILL
    if round(share * 100) % 2:
        applied = site.up()
        assert sorted(applied.outputs["instanceIds"]) == sorted(node.instance_id for node in client.nodes(site.cloud))
    site.destroy()
    assert site.left() == ({}, ())
