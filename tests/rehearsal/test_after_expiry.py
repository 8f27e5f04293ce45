"""After the expiry: the nodes are gone by themselves, the bill stopped with them, and every command says so."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

HOUR = timedelta(hours=1)


@pytest.fixture
def expired(bench):
    """A cluster that stood for an hour and ended itself two hours ago, in the home of somebody who was away."""
    bench.recipe()
    bench.run("up", "plain", "--yes")
    record = bench.home.cluster("plain").record
    stored = json.loads(record.read_text())
    now = datetime.now(UTC)
    stored["created_at"], stored["expires_at"] = (now - 3 * HOUR).isoformat(), (now - 2 * HOUR).isoformat()
    record.write_text(json.dumps(stored))
    return bench


def test_status_says_expired_and_asks_the_cloud_only_when_told(expired):
    (cluster,) = expired.json("status")["clusters"]
    assert cluster["state"] == "expired"
    client.advance(expired.cloud, 3 * 3600)
    (cluster,) = expired.json("status", "--refresh")["clusters"]
    assert cluster["state"] == "expired"
    assert {node["state"] for node in cluster["instances"]} <= {"terminated", "shutting-down"}
    assert float(cluster["spent_usd"]) == pytest.approx(62.48, abs=0.02)


@pytest.mark.parametrize("command", ["up", "train"])
def test_an_expired_cluster_is_not_used_again_but_named(expired, command):
    args = ("--cluster", "plain") if command == "train" else ()
    done = expired.run(command, "plain", "--yes", *args, code=2)
    assert "cluster plain expired at" in done.stderr
    assert "cloudgpu down plain" in done.stderr
    assert len(client.nodes(expired.cloud)) == 2


def test_down_ends_the_bill_where_the_nodes_ended_it(expired, until):
    ended_at = datetime.fromisoformat(json.loads(expired.home.cluster("plain").record.read_text())["expires_at"])
    client.advance(expired.cloud, 3 * 3600)
    until(lambda: all(node.state != "running" for node in client.nodes(expired.cloud)))
    expired.run("down", "plain")
    assert expired.left() == {}
    assert expired.json("status")["clusters"] == []
    (row,) = expired.json("cost")["rows"]
    assert row["open_entries"] == 0
    assert closed_at(expired.home) == ended_at
    client.advance(expired.cloud, -3 * 3600)
    # The name is free again.
    expired.run("up", "plain", "--yes")
    expired.run("down", "plain")
    assert expired.left() == {}


def closed_at(home):
    from cloudgpu.ledger.store import open_ledger

    (entry,) = open_ledger(f"sqlite:///{home.ledger_db}").entries()
    return entry.closed_at


def test_nodes_that_outlive_their_expiry_cost_until_down(expired):
    """What still runs is paid for: no bill ends earlier than the nodes."""
    before = datetime.now(UTC)
    expired.run("down", "plain")
    assert expired.left() == {}
    assert closed_at(expired.home) >= before
