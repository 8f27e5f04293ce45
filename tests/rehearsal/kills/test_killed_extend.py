"""SIGKILL of `extend` around its calls, on real nodes: no timer is lost, and running it again completes it."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.ledger.store import open_ledger
from cloudgpu.rehearsal import client
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, connect_all, run_on_all
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

STEP = timedelta(minutes=10)
SCHEDULE_TYPES = {"end-the-nodes": timedelta(minutes=5), "end-the-fleet": timedelta(minutes=10)}
TAG = "cloudgpu:expires-at"


@dataclass(frozen=True)
class Seen:
    """The expiry as stored in each place."""

    timers: tuple[frozenset[datetime], ...]
    """For each node, the times at which its own timers end it."""
    tags: frozenset[datetime]
    schedules: frozenset[datetime]
    booked: datetime
    recorded: datetime

    @property
    def outside(self) -> set[datetime]:
        """Expiries stored outside this state home."""
        return {*(at for node in self.timers for at in node), *self.tags, *self.schedules}

    @property
    def everywhere(self) -> set[datetime]:
        return {*self.outside, self.booked, self.recorded}


def timers(sandbox) -> tuple[frozenset[datetime], ...]:
    nodes = stored_inventory(sandbox.home, RecordStore(sandbox.home).cluster("plain")).nodes
    hosts = all_or_raise(connect_all(nodes, sandbox.home.ssh_key, clock=SystemClock()))
    try:
        said = all_or_raise(
            run_on_all(hosts.values(), lambda host: host.run(RemoteCommand("systemctl", "list-timers")).stdout)
        )
    finally:
        for host in hosts.values():
            host.close()
    found = [re.findall(r"cloudgpu-expiry-(\d+)\.timer", said[node.index]) for node in nodes]
    return tuple(frozenset(datetime.fromtimestamp(int(at), UTC) for at in node) for node in found)


def schedules(sandbox) -> frozenset[datetime]:
    import boto3

    cloud = sandbox.workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    scheduler = boto3.client("scheduler", region_name="us-east-1", endpoint_url=cloud.url, **key)
    return frozenset(
        datetime.fromisoformat(one["ScheduleExpression"][3:-1]).replace(tzinfo=UTC) - SCHEDULE_TYPES[one["Name"]]
        for one in (scheduler.get_schedule(GroupName="cloudgpu-plain", Name=name) for name in SCHEDULE_TYPES)
    )


def seen(sandbox) -> Seen:
    ledger = open_ledger(f"sqlite:///{sandbox.home.ledger_db}")
    try:
        (entry,) = ledger.entries(cluster="plain", state="open")
    finally:
        ledger.dispose()
    tags = {row["tags"][TAG] for rows in sandbox.left().values() for row in rows if TAG in row["tags"]}
    return Seen(
        timers(sandbox),
        frozenset(datetime.fromisoformat(one) for one in tags),
        schedules(sandbox),
        entry.spending.expires_at,
        RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at,
    )


def check_between(now: Seen, old: datetime, new: datetime, case: object) -> None:
    """Check that every expiry is old or new, every node has a timer, and the ledger has the latest expiry."""
    assert now.everywhere <= {old, new}, case
    assert all(now.timers), case
    assert now.booked == max(now.everywhere), case
    assert now.recorded == new or now.outside == {old}, case


def check_whole(now: Seen, at: datetime, case: object) -> None:
    assert now.everywhere == {at}, case


def killed_and_repeated(sandbox, place):
    old = RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at
    new = old + STEP
    again = ("extend", "plain", "--until", f"{new:%Y-%m-%dT%H:%M:%SZ}")
    if sandbox.kill_at(place, "extend", "plain", "--by", "10m"):
        check_between(seen(sandbox), old, new, place)
        # Killed after its last change it has nothing left to do, and says that the cluster lives so long already.
        done = RecordStore(sandbox.home).cluster("plain")
        whole = done.lifecycle.expires_at == new and done.lifecycle.confirmed_expires_at is None
        sandbox.run(*again, code=2 if whole else 0)
    check_whole(seen(sandbox), new, place)


@pytest.fixture(scope="module")
def extended(running):
    """Record the kill points of an uninterrupted `extend`; create a cluster in every sandbox."""
    for sandbox in running.sandboxes:
        sandbox.run("up", "plain", "--yes")
    sandbox = running.sandboxes[0]
    recording = sandbox.record("extend", "plain", "--by", "10m")
    assert recording.actions >= {"UpdateSchedule", "CreateTags"}
    return recording


def spread(places, count):
    """Return `count` evenly spaced places, including the first and the last."""
    return [places[round(at * (len(places) - 1) / (count - 1))] for at in range(count)]


def test_extend_killed_between_schedule_and_nodes_loses_no_timer(running, extended):
    assert "UpdateSchedule#1 effect" in extended.places
    killed_and_repeated(running.sandboxes[0], "UpdateSchedule#1 effect")


def test_extend_killed_around_any_change_loses_no_timer(running, extended):
    running.each(spread(extended.around_changes, 8), killed_and_repeated)


def test_extend_killed_before_any_file_change_loses_no_timer(running, extended):
    running.each(spread(extended.files, 6), killed_and_repeated)


@pytest.mark.full
def test_extend_killed_anywhere_loses_no_timer(running, extended):
    running.each(extended.places, killed_and_repeated)


def test_nodes_of_a_killed_extend_end_by_the_later_expiry(running, extended, until):
    """If a killed `extend` is not repeated, the nodes still end by the later expiry."""
    sandbox = running.sandboxes[-1]
    old = RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at
    assert sandbox.kill_at("UpdateSchedule#1 effect", "extend", "plain", "--by", "10m")
    left_s = (old + STEP - datetime.now(UTC)).total_seconds()
    client.advance(sandbox.workspace.cloud, left_s)
    until(lambda: not client.nodes(sandbox.workspace.cloud))
    for one in running.sandboxes:
        one.run("down", "plain")
        one.check_empty("the end")
