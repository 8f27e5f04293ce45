"""Lost ledger rows are detected and restored from the records and the times that the cloud reports."""

import sqlite3
from datetime import UTC, datetime

import pytest

from cloudgpu.aws.ec2.billing_times import instance_lifetimes
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.ledger.store import open_ledger

pytestmark = pytest.mark.rehearsal


def delete(workspace):
    for path in workspace.home.root.glob("ledger.sqlite3*"):
        path.unlink()


def empty(workspace):
    delete(workspace)
    workspace.home.ledger_db.touch()


def lose_launches(workspace):
    """Delete only the row of one node; the entry stays."""
    with sqlite3.connect(workspace.home.ledger_db) as direct:
        direct.execute("DROP TRIGGER launched_delete")
        direct.execute("DELETE FROM launched WHERE position = 1")
    direct.close()


def rows(workspace):
    with open_ledger(f"sqlite:///{workspace.home.ledger_db}") as ledger:
        return ledger.entries()


def lifetime(workspace, entry):
    """Return the launch and the end of the nodes by the times of the rehearsal cloud itself."""
    cloud = workspace.cloud
    session = connect(CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key), "us-east-1")
    lives = instance_lifetimes(session, entry.instance_ids).values()
    assert len(lives) == len(entry.instance_ids)
    return min(life.started_at for life in lives), max(life.ended_at for life in lives)


@pytest.fixture
def running(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    return workspace


LOSSES = [(delete, "2 nodes", ""), (empty, "2 nodes", ""), (lose_launches, "1 node", "cost")]


@pytest.mark.parametrize(("harm", "count", "shown"), LOSSES)
def test_lost_ledger_rows_are_reported_and_restored_by_down(running, harm, count, shown):
    (before,) = rows(running)
    harm(running)
    told = f"the ledger has no row for {count} of cluster plain"
    done = running.run("cost", code=13)
    assert told in done.stderr
    assert (shown in done.stdout, bool(done.stdout)) == (True, bool(shown))
    assert "cloudgpu status --refresh" in done.stderr.partition("hint:")[2]
    bill = running.json("cost", "--by", "cluster", code=13)
    assert bill["error"]["type"] == "LedgerError"
    assert "rows" in bill
    status = running.run("status", "--json")
    assert told in status.stderr
    ended = running.json("down", "plain")
    assert float(ended["cost"]["usd"]) > 0
    assert ended["cost"]["estimated"] is False
    (after,) = rows(running)
    assert after.spending.entry_id == before.spending.entry_id
    assert set(after.instance_ids) == set(before.instance_ids)
    assert (before.launched_at, before.launched_at, after.closed_at) == (after.launched_at, *lifetime(running, after))
    assert after.state == "closed"
    running.run("cost")


def test_extend_restores_lost_ledger_rows(running):
    delete(running)
    running.run("extend", "plain", "--by", "1h")
    (row,) = rows(running)
    assert (row.state, len(row.instance_ids)) == ("open", 2)
    assert row.spending.expires_at > datetime.now(UTC)
    running.run("cost")
    running.run("down", "plain")


def test_status_refresh_restores_lost_ledger_rows(running):
    delete(running)
    (told,) = running.json("status")["clusters"]
    assert len(told["unbilled"]) == 2
    assert float(told["spent_usd"]) > 0
    (cluster,) = running.json("status", "--refresh")["clusters"]
    assert cluster["unbilled"] == []
    running.run("cost")
    running.run("down", "plain")


def test_sweep_restores_lost_ledger_rows(running):
    delete(running)
    running.run("sweep", "--yes", "--all-mine")
    (row,) = rows(running)
    assert (row.state, len(row.instance_ids)) == ("closed", 2)
    assert running.left() == {}


def test_record_is_kept_while_the_ledger_is_damaged(running):
    delete(running)
    running.home.ledger_db.write_bytes(b"dear diary, " * 1000)
    assert float(running.json("status")["clusters"][0]["spent_usd"]) > 0
    done = running.run("down", "plain", code=13)
    assert "not a ledger, or is damaged" in done.stderr
    assert running.left() == {}
    (cluster,) = running.json("status")["clusters"]
    assert cluster["state"] == "ending"
    delete(running)
    running.run("cost", code=13)
    ended = running.json("down", "plain")
    assert float(ended["cost"]["usd"]) > 0
    assert ended["cost"]["estimated"] is False
    running.run("cost")
    assert running.json("status")["clusters"] == []


def test_up_warns_of_missing_ledger_rows_of_a_running_cluster(running):
    delete(running)
    done = running.run("up", "plain", "--yes")
    assert "warning: the ledger has no row for 2 nodes of cluster plain" in done.stdout + done.stderr
    running.run("down", "plain")


def test_lost_storage_rows_are_reported_and_restored(workspace):
    workspace.run("storage", "create", "sets", "--kind", "ebs", "--size", "10", "--zone", "us-east-1c", "--yes")
    (before,) = rows(workspace)
    delete(workspace)
    done = workspace.run("cost", code=13)
    assert "the ledger has no row for storage sets" in done.stderr
    workspace.run("status", "--refresh")
    workspace.run("cost")
    delete(workspace)
    workspace.run("storage", "delete", "sets", "--delete-data", "--yes")
    (after,) = rows(workspace)
    assert (after.state, after.spending.entry_id) == ("closed", before.spending.entry_id)
    assert abs((after.launched_at - before.launched_at).total_seconds()) < 60
