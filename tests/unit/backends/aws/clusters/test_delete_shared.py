"""`down` with duplicate names, lost or damaged records, full disks, and several regions."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.engine.direct.journal import Journal, JournalAccount
from cloudgpu.errors import BadRequestError, BusyError, CloudError, StateError, TeardownError, UsageError
from cloudgpu.state.record_store import RecordStore
from tests.cluster_records import changed


def up(workspace, make, name="demo", **plan):
    return workspace.provisioning.create(make.plan(make.candidate(), **plan), name).record


def tags(owner="ann", token="other"):
    return {"cloudgpu:owner": owner, "cloudgpu:token": token}


def lost_record(workspace, name="demo"):
    workspace.home.cluster(name).record.unlink()


def rows(workspace):
    return {(entry.spending.owner, entry.state) for entry in workspace.ledger.entries()}


def test_down_leaves_same_named_cluster_of_another_owner(workspace, make):
    up(workspace, make)
    workspace.cloud.orphans = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    assert workspace.teardown.down("demo", "us-east-1").orphans == ()
    assert [resource.id for resource in workspace.cloud.orphans] == ["i-bobs"]


def test_down_of_another_owners_cluster_is_rejected(workspace, make):
    workspace.cloud.orphans = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    with pytest.raises(UsageError, match="belongs to bob"):
        workspace.teardown.down("demo", "us-east-1")
    assert workspace.cloud.orphans


def test_down_closes_no_rows_of_a_same_named_cluster(workspace, make):
    up(workspace, make)
    lost_record(workspace)
    workspace.owner = "bob"
    workspace.cloud.endpoint = "rehearsal:OTHER"
    up(workspace, make)
    workspace.teardown.down("demo", "us-east-1")
    assert rows(workspace) == {("ann", "open"), ("bob", "closed")}


def test_failed_up_deletes_only_resources_with_its_own_token(workspace, make):
    workspace.cloud.orphans = [make.thing("volume", "vol-mine-from-elsewhere", "us-east-1", tags("ann"))]
    workspace.cloud.refusals = {"us-east-1c": BadRequestError("the name is taken", code="InvalidGroup.Duplicate")}
    with pytest.raises(BadRequestError):
        up(workspace, make)
    assert workspace.cloud.orphans


def test_down_without_record_searches_ledger_regions_and_closes_rows(workspace, make):
    workspace.provisioning.create(make.plan(make.candidate("us-west-2a")), "demo")
    lost_record(workspace)
    workspace.cloud.orphans = [make.thing("instance", "i-us-west-2a-0", "us-west-2", tags("ann"))]
    workspace.cloud.searched.clear()
    workspace.clock.sleep(1800)
    ended = workspace.teardown.down("demo", "us-east-1")
    assert {("us-east-1",), ("us-west-2",)} <= set(workspace.cloud.searched)
    assert ended.orphans == ("instance i-us-west-2a-0",)
    assert ended.usd == Decimal("31.212")
    assert rows(workspace) == {("ann", "closed")}


def test_down_fails_if_ledger_has_the_cluster_in_another_account(workspace, make):
    workspace.cloud.target, workspace.cloud.endpoint = "aws", ""
    plan = make.plan(make.candidate())
    workspace.provisioning.create(_on_aws(plan), "demo")
    lost_record(workspace)
    workspace.cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="in account 111122223333, not in 999900001111"):
        workspace.teardown.down("demo", "us-east-1")
    assert rows(workspace) == {("ann", "open")}


def _on_aws(plan):
    from dataclasses import replace

    return replace(plan, target="aws")


def test_damaged_record_does_not_block_down_or_hide_other_clusters(workspace, make):
    up(workspace, make)
    up(workspace, make, "other")
    workspace.home.cluster("demo").record.write_text('{"name": "demo", "created_at": 7}')
    states = {record.name: record.state for record in workspace.records.clusters()}
    assert states == {"demo": "damaged", "other": "up"}
    workspace.cloud.orphans = [make.thing("instance", "i-us-east-1c-0", "us-east-1", tags("ann"))]
    assert workspace.teardown.down("demo", "us-east-1").orphans == ("instance i-us-east-1c-0",)
    assert [record.name for record in workspace.records.clusters()] == ["other"]


def test_down_by_a_damaged_record_fails_if_a_journal_lists_resources_of_another_account(workspace, make):
    """A damaged record does not say in which cloud the cluster is, so the configured cloud is searched."""
    up(workspace, make)
    paths = workspace.home.cluster("demo")
    paths.record.write_text("")
    with Journal(paths.journal("us-east-1"), JournalAccount("999900001111"), workspace.clock):
        pass
    with pytest.raises(TeardownError, match="confirmed deleted only in account 111122223333") as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == (f"resources of account 999900001111 in {paths.journal('us-east-1')}",)
    assert "cloudgpu down demo --on aws" in caught.value.hint
    assert paths.record.exists()
    assert paths.journal("us-east-1").exists()
    with paths.journal("us-east-1").open("ab") as journal:
        journal.write(b"damaged\n")
    with pytest.raises(TeardownError):
        workspace.teardown.down("demo", "us-east-1")
    paths.journal("us-east-1").write_bytes(b"damaged\n")  # names no account
    workspace.teardown.down("demo", "us-east-1")


def test_damaged_journal_falls_back_to_repeated_tag_search(workspace, make):
    record = up(workspace, make)
    workspace.cloud.destroy_fails = StateError("the journal is damaged")
    workspace.cloud.orphans = [make.thing("fleet", "fleet-1", "us-east-1", tags("ann", record.identity.token))]
    assert workspace.teardown.down("demo", "us-east-1").orphans == ("fleet fleet-1",)
    assert len(workspace.cloud.searched) >= 4
    assert workspace.records.clusters() == []


def test_full_disk_does_not_prevent_cluster_deletion(workspace, make, monkeypatch):
    up(workspace, make)

    def full(self, record, now):
        raise StateError("no space left on the disk")

    monkeypatch.setattr(RecordStore, "save_cluster", full)
    assert workspace.teardown.down("demo", "us-east-1").known
    assert workspace.ledger.entries(state="open") == ()


def test_failed_region_does_not_stop_deletion_in_the_other(workspace, make):
    workspace.cloud.refusals = {}
    record = up(workspace, make)
    failed_over = changed(record, regions=("eu-west-1", "us-east-1"))
    workspace.records.save_cluster(failed_over, workspace.clock.now())
    workspace.cloud.destroy_fails = CloudError("cannot reach ec2.eu-west-1")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("eu-west-1: cannot reach ec2.eu-west-1", "us-east-1: cannot reach ec2.eu-west-1")
    tried = [region for kind, region, _ in workspace.cloud.calls if kind == "destroy"]
    assert tried == ["eu-west-1", "us-east-1"]


def test_nodes_launched_by_a_killed_up_are_billed(workspace, make):
    class Killed(BaseException):
        pass

    def die(stack):
        record = workspace.records.cluster("demo")
        workspace.cloud.orphans = [
            make.thing("instance", f"i-{n}", "us-east-1", tags("ann", record.identity.token)) for n in (0, 1)
        ]
        raise Killed

    workspace.cloud.before_up = die
    with pytest.raises(Killed):
        up(workspace, make)
    workspace.clock.sleep(3600 - 60)
    workspace.clock.sleep(60)
    assert workspace.teardown.down("demo", "us-east-1").usd == 2 * Decimal("31.212")


def test_original_error_and_failed_cleanup_are_reported_together(workspace, make):
    workspace.cloud.refusals = {"us-east-1c": BadRequestError("no such subnet", code="InvalidSubnetID.NotFound")}
    workspace.cloud.destroy_fails = TeardownError("1 is left", left=["vpc vpc-1"])
    with pytest.raises(TeardownError, match="no such subnet; and the cleanup failed: 1 is left") as caught:
        up(workspace, make)
    assert caught.value.left == ("vpc vpc-1",)
    assert isinstance(caught.value.__cause__, BadRequestError)
    assert caught.value.exit_code == 6


def test_unexpected_exception_leaves_no_cluster(workspace, make):
    def bug(stack):
        raise ZeroDivisionError

    workspace.cloud.before_up = bug
    with pytest.raises(ZeroDivisionError):
        up(workspace, make)
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_down_cancels_the_runs_of_its_cluster(workspace, training):
    detached = training(detach=True)
    workspace.teardown.down(detached.record.cluster, "us-east-1")
    record = workspace.records.run(detached.record.run_id)
    assert (record.state, record.reason) == ("cancelled", "its cluster was deleted")
    assert [run.ended_at for run in workspace.ledger.runs()] == [workspace.clock.now()]


@pytest.mark.parametrize("name", ["../escape", "a/b", "", "..", "Upper"])
def test_cluster_name_cannot_escape_the_state_home(workspace, name):
    with pytest.raises(UsageError):
        workspace.teardown.down(name, "us-east-1")
    assert not (workspace.home.root / "escape").exists()


def test_down_leaves_no_cluster_files_in_the_state_home(workspace, make):
    up(workspace, make)
    workspace.teardown.down("demo", "us-east-1")
    workspace.teardown.down("never-was", "us-east-1")
    assert list(workspace.home.clusters.iterdir()) == []


def test_lease_is_removed_after_the_cluster_record(workspace, make, monkeypatch):
    """A process that waits for the lease must not find the record of the deleted cluster."""
    up(workspace, make)
    seen = []
    forget = RecordStore.forget_cluster

    def watched(self, name):
        forget(self, name)
        seen.append(workspace.home.cluster(name).lease.exists())

    monkeypatch.setattr(RecordStore, "forget_cluster", watched)
    workspace.teardown.down("demo", "us-east-1")
    assert seen == [True]


def test_name_taken_in_the_shared_ledger_is_rejected(workspace, make):
    up(workspace, make)
    lost_record(workspace)
    workspace.owner = "bob"
    with pytest.raises(BusyError, match="demo is in use by ann until 2026"):
        up(workspace, make)
    assert rows(workspace) == {("ann", "open")}


def test_name_taken_according_to_tags_is_rejected(workspace, make):
    workspace.cloud.orphans = [make.thing("instance", "i-bobs", "us-east-1", tags("bob"))]
    with pytest.raises(BusyError, match="demo is in use by bob; that cluster was created"):
        up(workspace, make)
    assert workspace.records.clusters() == []
    assert workspace.cloud.calls == []


def test_expired_ledger_row_does_not_reserve_the_name(workspace, make):
    up(workspace, make)
    lost_record(workspace)
    workspace.clock.sleep(timedelta(hours=2).total_seconds())
    assert up(workspace, make).state == "up"
