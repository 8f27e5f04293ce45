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
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

STEP = timedelta(minutes=10)
SCHEDULE_TYPES = {"end-the-nodes": timedelta(minutes=5), "end-the-fleet": timedelta(minutes=10)}
TAG = "cloudgpu:expires-at"


@dataclass(frozen=True)
class StoredExpiries:
    """The expiry as stored in each place."""

    timers: tuple[frozenset[datetime], ...]
    """For each node, the times at which its own timers power it off."""
    tags: frozenset[datetime]
    schedules: frozenset[datetime]
    ledger: datetime
    record: datetime

    @property
    def external(self) -> set[datetime]:
        """Expiries stored outside this state home."""
        return {*(at for node in self.timers for at in node), *self.tags, *self.schedules}

    @property
    def all(self) -> set[datetime]:
        return {*self.external, self.ledger, self.record}


def timers(sandbox) -> tuple[frozenset[datetime], ...]:
    nodes = stored_inventory(sandbox.home, RecordStore(sandbox.home).cluster("plain")).nodes
    hosts = all_or_raise(connect_all(nodes, sandbox.home.ssh_key, clock=SystemClock()))
    try:
        outputs = all_or_raise(
            run_on_all(hosts.values(), lambda host: host.run(RemoteCommand("systemctl", "list-timers")).stdout)
        )
    finally:
        for host in hosts.values():
            host.close()
    found = [re.findall(r"cloudgpu-expiry-(\d+)\.timer", outputs[node.index]) for node in nodes]
    return tuple(frozenset(datetime.fromtimestamp(int(at), UTC) for at in node) for node in found)


def schedules(sandbox) -> frozenset[datetime]:
    import boto3

    cloud = sandbox.workspace.cloud
    key = {"aws_access_key_id": cloud.access_key_id, "aws_secret_access_key": cloud.secret_access_key}
    scheduler = boto3.client("scheduler", region_name="us-east-1", endpoint_url=cloud.url, **key)
    return frozenset(
        datetime.fromisoformat(schedule["ScheduleExpression"][3:-1]).replace(tzinfo=UTC)
        - SCHEDULE_TYPES[schedule["Name"]]
        for schedule in (scheduler.get_schedule(GroupName="cloudgpu-plain", Name=name) for name in SCHEDULE_TYPES)
    )


def stored_expiries(sandbox) -> StoredExpiries:
    ledger = open_ledger(f"sqlite:///{sandbox.home.ledger_db}")
    try:
        (entry,) = ledger.entries(cluster="plain", state="open")
    finally:
        ledger.engine.dispose()
    tags = {row["tags"][TAG] for rows in sandbox.remaining_resources().values() for row in rows if TAG in row["tags"]}
    return StoredExpiries(
        timers(sandbox),
        frozenset(datetime.fromisoformat(tag) for tag in tags),
        schedules(sandbox),
        entry.spending.expires_at,
        RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at,
    )


def check_between(expiries: StoredExpiries, old: datetime, new: datetime, case: object) -> None:
    """Check that every expiry is old or new, every node has a timer, and the ledger has the latest expiry."""
    assert expiries.all <= {old, new}, case
    assert all(expiries.timers), case
    assert expiries.ledger == max(expiries.all), case
    assert expiries.record == new or expiries.external == {old}, case


def check_complete(expiries: StoredExpiries, at: datetime, case: object) -> None:
    assert expiries.all == {at}, case


def kill_extend_then_repeat(sandbox, point):
    old = RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at
    new = old + STEP
    again = ("extend", "plain", "--until", f"{new:%Y-%m-%dT%H:%M:%SZ}")
    if sandbox.kill_at(point, "extend", "plain", "--by", "10m"):
        check_between(stored_expiries(sandbox), old, new, point)
        # If the command was killed after its last change, a repeated `extend` reports that the expiry is already set.
        record = RecordStore(sandbox.home).cluster("plain")
        complete = record.lifecycle.expires_at == new and record.lifecycle.confirmed_expires_at is None
        sandbox.run(*again, code=2 if complete else 0)
    check_complete(stored_expiries(sandbox), new, point)


@pytest.fixture(scope="module")
def extend_points(real_node_pool):
    """Kill points of an uninterrupted `extend`. Also creates a cluster in every sandbox."""
    for sandbox in real_node_pool.sandboxes:
        sandbox.run("up", "plain", "--yes")
    sandbox = real_node_pool.sandboxes[0]
    points = sandbox.kill_points("extend", "plain", "--by", "10m")
    assert points.actions >= {"UpdateSchedule", "CreateTags"}
    return points


def spread(points, count):
    """Return `count` evenly spaced points, including the first and the last."""
    return [points[round(at * (len(points) - 1) / (count - 1))] for at in range(count)]


def test_extend_killed_between_schedule_and_nodes_loses_no_timer(real_node_pool, extend_points):
    assert "UpdateSchedule#1 effect" in extend_points.all
    kill_extend_then_repeat(real_node_pool.sandboxes[0], "UpdateSchedule#1 effect")


def test_extend_killed_around_any_change_loses_no_timer(real_node_pool, extend_points):
    real_node_pool.run_cases(spread(extend_points.around_changes, 8), kill_extend_then_repeat)


def test_extend_killed_before_any_file_change_loses_no_timer(real_node_pool, extend_points):
    real_node_pool.run_cases(spread(extend_points.files, 6), kill_extend_then_repeat)


@pytest.mark.full
def test_extend_killed_anywhere_loses_no_timer(real_node_pool, extend_points):
    real_node_pool.run_cases(extend_points.all, kill_extend_then_repeat)


def test_nodes_of_a_killed_extend_end_by_the_later_expiry(real_node_pool, extend_points, until):
    """If a killed `extend` is not repeated, the nodes still end by the later expiry."""
    sandbox = real_node_pool.sandboxes[-1]
    old = RecordStore(sandbox.home).cluster("plain").lifecycle.expires_at
    assert sandbox.kill_at("UpdateSchedule#1 effect", "extend", "plain", "--by", "10m")
    left_s = (old + STEP - datetime.now(UTC)).total_seconds()
    client.advance(sandbox.workspace.cloud, left_s)
    until(lambda: not client.nodes(sandbox.workspace.cloud))
    for sandbox in real_node_pool.sandboxes:
        sandbox.run("down", "plain")
        sandbox.check_empty("after the expiry")
