"""After the expiry: running nodes are billed, terminated ones until AWS's end time, and commands say so."""

import json
import re
import sqlite3
from datetime import UTC, datetime, timedelta

import boto3
import pytest

from cloudgpu.ledger.store import open_ledger
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

HOUR = timedelta(hours=1)


@pytest.fixture
def expired(workspace):
    """Create a cluster that expired two hours ago, after one hour, with nodes that still run."""
    workspace.recipe()
    workspace.run("up", "plain", "--yes", env={"CLOUDGPU_EXPIRY_SCHEDULE": "false"})
    record = workspace.home.cluster("plain").record
    stored = json.loads(record.read_text())
    now = datetime.now(UTC)
    stored["created_at"], stored["expires_at"] = (now - 3 * HOUR).isoformat(), (now - 2 * HOUR).isoformat()
    record.write_text(json.dumps(stored))
    earlier(workspace.home.ledger_db, now - 3 * HOUR)
    return workspace


def earlier(ledger, at):
    """Move the launch to an earlier time, which the ledger's triggers would reject."""
    text = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    with sqlite3.connect(ledger) as direct:
        for table, column in (("opened", "opened_at"), ("launched", "launched_at")):
            direct.execute(f"DROP TRIGGER {table}_update")
            direct.execute(f"UPDATE {table} SET {column} = ?", (text,))
    direct.close()


def entry(home):
    with open_ledger(f"sqlite:///{home.ledger_db}") as ledger:
        (found,) = ledger.entries()
    return found


def spent(workspace):
    (cluster,) = workspace.json("status")["clusters"]
    return float(cluster["spent_usd"])


def bill(workspace):
    (row,) = workspace.json("cost", "--by", "cluster")["rows"]
    return float(row["usd"])


THREE_HOURS_USD = 3 * 62.48
MINUTES_USD = 4.0
"""Tolerance: the cost of the minutes that a slow machine may need."""


def test_status_reports_expired_and_queries_the_cloud_only_on_refresh(expired, until):
    (cluster,) = expired.json("status")["clusters"]
    assert cluster["state"] == "expired"
    client.advance(expired.cloud, 3 * 3600)
    until(lambda: client.nodes(expired.cloud) == ())
    (cluster,) = expired.json("status", "--refresh")["clusters"]
    assert cluster["state"] == "expired"
    assert {node["state"] for node in cluster["instances"]} <= {"terminated", "shutting-down"}
    assert float(cluster["spent_usd"]) == pytest.approx(THREE_HOURS_USD, abs=MINUTES_USD)


def test_status_and_cost_agree_while_nodes_outlive_their_expiry(expired):
    before = bill(expired)
    between = spent(expired)
    after = bill(expired)
    assert before >= THREE_HOURS_USD - 0.01
    assert round(before, 2) <= between <= round(after, 2)


@pytest.mark.parametrize("command", ["up", "train"])
def test_up_and_train_refuse_to_reuse_an_expired_cluster(expired, command):
    args = ("--cluster", "plain") if command == "train" else ()
    done = expired.run(command, "plain", "--yes", *args, code=2)
    assert "cluster plain expired at" in done.stderr
    assert "cloudgpu down plain" in done.stderr
    assert len(client.nodes(expired.cloud)) == 2


def terminate(workspace):
    """Terminate the nodes through the API and return the time that AWS reports for it."""
    key = {
        "aws_access_key_id": workspace.cloud.access_key_id,
        "aws_secret_access_key": workspace.cloud.secret_access_key,
    }
    ec2 = boto3.client("ec2", region_name="us-east-1", endpoint_url=workspace.cloud.url, **key)
    ids = list(entry(workspace.home).instance_ids)
    ec2.terminate_instances(InstanceIds=ids)
    found = ec2.describe_instances(InstanceIds=ids)["Reservations"]
    reasons = [one["StateTransitionReason"] for group in found for one in group["Instances"]]
    return max(datetime.fromisoformat(re.search(r"\((.*) GMT\)", one)[1]).replace(tzinfo=UTC) for one in reasons)


def test_down_ends_billing_at_the_termination_time_reported_by_aws(expired, until):
    ended_at = terminate(expired)
    until(lambda: client.nodes(expired.cloud) == ())
    ended = expired.json("down", "plain")
    assert expired.left() == {}
    assert ended["cost"]["estimated"] is False
    assert entry(expired.home).closed_at == ended_at
    assert expired.json("status")["clusters"] == []
    (row,) = expired.json("cost")["rows"]
    assert (row["open_entries"], row["estimated_entries"]) == (0, 0)
    # The name is free again.
    expired.run("up", "plain", "--yes")
    expired.run("down", "plain")
    assert expired.left() == {}


def test_self_terminated_nodes_are_billed_until_seen_terminated(expired, until):
    """AWS reports no time for this: the bill is an upper bound, marked as estimated, that `status --refresh` lowers."""
    client.advance(expired.cloud, 3 * 3600)
    until(lambda: client.nodes(expired.cloud) == ())
    expired.run("status", "--refresh")
    seen_at = datetime.now(UTC)
    usd = bill(expired)
    done = expired.run("down", "plain")
    assert "at most $" in done.stdout
    closed = entry(expired.home)
    assert closed.closed_at <= seen_at
    assert closed.parts["nodes"].estimated
    assert bill(expired) == usd == pytest.approx(THREE_HOURS_USD, abs=MINUTES_USD)
    assert "estimated, at most" in expired.run("cost").stdout


def test_nodes_running_past_their_expiry_are_billed_until_down(expired):
    """Running nodes cost money: the bill does not end before the nodes do."""
    before = datetime.now(UTC)
    expired.run("down", "plain")
    assert expired.left() == {}
    found = entry(expired.home)
    assert found.closed_at >= before.replace(microsecond=0)
    assert found.parts == {}
