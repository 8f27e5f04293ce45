"""`storage create` and `storage delete`: idempotence, rejected requests, and verified deletion."""

import json
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.backends.billing.retained_billing import storage_spending
from cloudgpu.errors import (
    BadRequestError,
    BusyError,
    CapacityError,
    CloudError,
    StateError,
    TeardownError,
    UsageError,
)
from cloudgpu.state.storage_records import StorageRecords
from tests.unit.backends.aws.storage.conftest import REQUEST, START, held


def test_storage_record_is_written_before_the_first_call(manager, cloud, home):
    def seen(stack):
        record = StorageRecords(home).get("sets")
        assert (record.state, record.token) == ("making", stack.config["token"])

    cloud.seen = seen
    created = manager.create(REQUEST)
    assert created.made
    assert created.record.access_details["mount_name"] == "mnt"
    config = cloud.stack.config
    assert (config["storage"], config["owner"], config["keep"], config["protect"]) == ("sets", "ada", "true", "false")
    assert cloud.stack.program.name == "storage"
    assert cloud.stack.journal == home.root / "storage" / "sets" / "us-east-1.journal"


def test_second_storage_create_makes_no_calls(manager, cloud):
    token = manager.create(REQUEST).record.token
    again = manager.create(REQUEST)
    assert (again.made, again.record.token) == (False, token)
    assert cloud.calls == ["up"]


@pytest.mark.parametrize(
    "changes", [{"kind": "efs"}, {"disposable": True}, {"region": "us-west-2"}, {"config": {"sizeGib": "2400"}}]
)
def test_existing_storage_with_different_options_is_rejected(manager, changes):
    manager.create(REQUEST)
    with pytest.raises(UsageError, match="already exists with different options"):
        manager.create(replace(REQUEST, **changes))


def test_storage_of_version_0_1_0_has_the_same_options(manager):
    """That version recorded a list of one ID as the ID alone."""
    ids = {"subnetIds": "subnet-0a1b2c3d", "clientSecurityGroupIds": "sg-0a1b2c3d"}
    before = replace(REQUEST, config={**REQUEST.config, **ids})
    manager.create(before)
    lists = {key: json.dumps([text]) for key, text in ids.items()}
    assert not manager.create(replace(REQUEST, config={**REQUEST.config, **lists})).made
    other = {**lists, "subnetIds": '["subnet-1"]'}
    with pytest.raises(UsageError, match="already exists with different options"):
        manager.create(replace(REQUEST, config={**REQUEST.config, **other}))


def test_storage_create_resumes_with_its_original_engine(manager, cloud, home):
    cloud.requested_engine = "pulumi"
    assert manager.create(REQUEST).record.engine == "pulumi"
    cloud.requested_engine = "direct"
    with pytest.raises(UsageError, match="created with the pulumi engine, not direct"):
        manager.create(REQUEST)
    cloud.requested_engine = ""  # no requested engine selects the right one
    assert not manager.create(REQUEST).made
    assert StorageRecords(home).get("sets").engine == "pulumi"


def test_unusable_engine_is_reported_before_a_record_is_written(manager, cloud, home, monkeypatch):
    def engine(record):
        raise UsageError("there is no Pulumi CLI")

    monkeypatch.setattr(cloud, "engine", engine)
    with pytest.raises(UsageError, match="no Pulumi CLI"):
        manager.create(REQUEST)
    assert StorageRecords(home).all() == []


def test_same_named_storage_of_another_owner_is_rejected_and_kept(manager, cloud, home):
    manager.create(REQUEST)
    cloud.there[0].parts[0].tags["cloudgpu:owner"] = "bob"
    StorageRecords(home).forget("sets")
    with pytest.raises(UsageError, match="belongs to bob"):
        manager.create(REQUEST)
    with pytest.raises(UsageError, match="belongs to bob"):
        manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_failed_storage_create_is_cleaned_up_immediately(manager, cloud, home):
    cloud.refuses = CapacityError("no Lustre left")
    with pytest.raises(CapacityError, match="no Lustre left"):
        manager.create(REQUEST)
    assert cloud.calls == ["up", "empty", "destroy"]
    assert StorageRecords(home).get("sets") is None
    assert cloud.there == []


def test_failed_create_and_failed_cleanup_are_reported_together(manager, cloud, home):
    cloud.refuses, cloud.destroys, cloud.refuses_end = CapacityError("no Lustre left"), False, ["lustre fs-1: busy"]
    with pytest.raises(
        TeardownError, match="no Lustre left; and the partly created storage could not be deleted"
    ) as caught:
        manager.create(REQUEST)
    assert caught.value.left == ("lustre fs-1: busy",)
    assert caught.value.hint == "cloudgpu storage delete sets"
    assert StorageRecords(home).get("sets").state == "making"


def test_interrupted_create_continues_with_its_own_token(manager, cloud, home):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.create(REQUEST)
    token = StorageRecords(home).get("sets").token
    cloud.refuses = None
    assert manager.create(REQUEST).record.token == token


def test_protected_data_is_deleted_only_with_delete_data(manager, cloud):
    manager.create(REQUEST)
    for call in (manager.delete, manager.find_deletable):
        with pytest.raises(UsageError, match="contains protected data") as caught:
            call("sets", "us-east-1", delete_data=False)
        assert caught.value.hint == "run `cloudgpu storage delete sets --delete-data` to delete it permanently"
    assert cloud.calls == ["up"]
    deleted = manager.delete("sets", "us-west-2", delete_data=True)
    assert deleted.known
    assert deleted.parts == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")


def test_disposable_storage_is_deleted_without_delete_data(manager, cloud, home):
    manager.create(replace(REQUEST, disposable=True))
    manager.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []
    assert StorageRecords(home).get("sets") is None


def test_storage_that_was_never_available_is_not_protected(manager, cloud):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        manager.create(REQUEST)
    manager.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []


def test_storage_in_use_is_not_deleted(manager, cloud):
    record = manager.create(replace(REQUEST, disposable=True)).record
    cloud.there = [held(record, users=("i-1 (cluster demo)",), keep="false")]
    with pytest.raises(BusyError, match=r"in use by i-1 \(cluster demo\)"):
        manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_bucket_with_unknown_users_is_deleted(manager, cloud):
    record = manager.create(REQUEST).record
    cloud.there = [held(record, users=None, kind="s3")]
    manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy"]


def test_storage_missing_from_the_journal_is_deleted_by_tags(manager, cloud):
    manager.create(REQUEST)
    cloud.destroys = False
    manager.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy", "end"]


def test_reasons_why_storage_was_not_deleted_are_kept(manager, cloud):
    manager.create(REQUEST)
    cloud.destroys = False
    cloud.end = lambda storage: ["lustre fs-1: an export is running"]
    with pytest.raises(TeardownError) as caught:
        manager.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("lustre fs-1: an export is running",)


def test_storage_is_deleted_only_when_a_second_search_is_empty(manager, cloud, home):
    manager.create(REQUEST)
    cloud.destroys = False
    cloud.end = lambda storage: []
    with pytest.raises(TeardownError, match="storage sets is not deleted") as caught:
        manager.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")
    assert StorageRecords(home).get("sets").state == "deleting"
    with pytest.raises(BusyError, match="being deleted"):
        manager.create(REQUEST)


@pytest.mark.parametrize("lost", ["forgotten", "damaged"])
def test_tags_protect_data_if_the_record_is_lost(manager, cloud, home, lost):
    manager.create(REQUEST)
    if lost == "forgotten":
        StorageRecords(home).forget("sets")
    else:
        home.storage("sets").record.write_text("{")
    with pytest.raises(UsageError, match="protected data"):
        manager.delete("sets", "us-east-1", delete_data=False)
    assert manager.delete("sets", "us-east-1", delete_data=True).known is False
    assert cloud.calls == ["up", "end"]


def test_delete_of_nonexistent_storage_succeeds(manager, home):
    assert manager.delete("sets", "us-east-1", delete_data=False).parts == ()
    assert not (home.root / "storage" / "sets").exists()


def test_storage_of_another_account_is_not_considered_deleted(manager, cloud):
    manager.create(REQUEST)
    cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="created in account 111122223333"):
        manager.delete("sets", "us-east-1", delete_data=True)


def test_storage_list_includes_other_owners_and_missing_storage(manager, cloud):
    record = manager.create(REQUEST).record
    cloud.there.append(held(replace(record, name="bobs", token="t2", owner="bob"), users=("i-1",)))
    manager.create(replace(REQUEST, name="lost", region="us-west-2"))
    cloud.there = [storage for storage in cloud.there if storage.name != "lost"]
    rows = manager.rows("us-east-1")
    assert [(row.name, row.owner, row.state, row.users, row.monthly_usd) for row in rows] == [
        ("bobs", "bob", "available", ("i-1",), Decimal("168.00")),
        ("lost", "ada", "not found", None, None),
        ("sets", "ada", "available", (), Decimal("168.00")),
    ]
    cloud.target, cloud.endpoint, cloud.there = "rehearsal", "rehearsal:x", []
    assert manager.rows("us-east-1") == ()


def test_tagged_storage_is_deleted_despite_bucket_and_journal_errors(manager, cloud, monkeypatch):
    manager.create(REQUEST)

    def damaged(stack, on_event):
        raise StateError("the journal is damaged")

    def denied(storage):
        raise CloudError("not authorized to perform s3:DeleteObject")

    monkeypatch.setattr(cloud, "destroy", damaged)
    monkeypatch.setattr(cloud, "empty", denied)
    with pytest.raises(TeardownError) as caught:
        manager.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("not authorized to perform s3:DeleteObject",)
    # Resources known only by tag were deleted although the journal and the bucket failed.
    assert cloud.there == []


def test_bucket_to_link_is_looked_up_before_anything_is_created(manager, cloud, home):
    linked = replace(REQUEST, config={**REQUEST.config, "linked": "s3://data/set"})
    with pytest.raises(BadRequestError, match="there is no bucket s3://data/set"):
        manager.create(linked)
    assert cloud.calls == []
    assert StorageRecords(home).get("sets") is None
    cloud.buckets = ("s3://data/set",)
    assert manager.create(linked).made


def test_failed_creation_points_at_the_missing_service_linked_role(manager, cloud):
    cloud.refuses = CloudError("mount target: User is not authorized", code="AccessDeniedException", hint="log in")
    with pytest.raises(CloudError) as without:
        manager.create(REQUEST)
    assert without.value.hint == "log in"
    cloud.hint = "the account has no role R"
    with pytest.raises(CloudError) as found:
        manager.create(REQUEST)
    assert (found.value.hint, cloud.there) == ("the account has no role R", [])


def orphan(manager, cloud, home, **tags):
    """Storage of this owner whose record was lost."""
    record = manager.create(replace(REQUEST, disposable=True)).record
    StorageRecords(home).forget("sets")
    cloud.there = [held(record, **{"keep": "false", **tags})]
    cloud.calls.clear()
    return record


def test_orphan_is_deleted_by_its_token_and_its_row_closed(manager, cloud, home, ledger):
    record = orphan(manager, cloud, home)
    other = replace(cloud.there[0], token="another")
    cloud.there.append(other)
    manager.delete_orphan("sets", record.token, "us-east-1")
    assert (cloud.there, cloud.calls) == ([other], ["end"])
    assert [row.state for row in ledger.entries()] == ["closed"]


def test_orphan_without_data_is_billed_from_the_opening_of_its_row(manager, cloud, home, ledger):
    """Its file system may have been deleted by a command that was killed, like the command that created it."""
    record = orphan(manager, cloud, home)
    killed = replace(storage_spending(record), entry_id="killed/storage", opened_at=START - timedelta(hours=1))
    ledger.open(killed)
    cloud.there = [replace(cloud.there[0], token="killed", parts=cloud.there[0].parts[1:])]
    manager.delete_orphan("sets", "killed", "us-east-1")
    (row,) = [row for row in ledger.entries() if row.spending.entry_id == killed.entry_id]
    assert (row.state, row.launched_at) == ("closed", killed.opened_at)


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        ({"users": ("i-1",)}, BusyError("storage sets may be in use by i-1")),
        # Another command has marked the storage as protected since the sweep's search.
        ({"keep": "true"}, TeardownError("storage sets is not deleted: lustre fs-1")),
    ],
)
def test_orphan_in_use_or_protected_by_now_is_kept_and_billed(manager, cloud, home, ledger, tags, error):
    record = orphan(manager, cloud, home, **tags)
    with pytest.raises(type(error), match=error.message) as failure:
        manager.delete_orphan("sets", record.token, "us-east-1")
    assert "run `cloudgpu sweep` again" in failure.value.hint
    assert (len(cloud.there), cloud.calls) == (1, [])
    assert [row.state for row in ledger.entries()] == ["open"]
