"""Storage is billed by the cloud's clock, from the creation time that the cloud reports."""

from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime

import pytest

from cloudgpu.backends.aws.storage_manager import StorageManager
from cloudgpu.backends.billing.retained_billing import storage_spending
from cloudgpu.ledger.store import open_ledger
from cloudgpu.state.storage_records import StorageRecords
from tests.unit.backends.aws.storage.conftest import REQUEST, START


@pytest.fixture
def skewed(manager, cloud):
    """Set the cloud's clock ahead of this machine's, let storage be created 30 s later, and return the cloud's time."""

    def skewed(ahead_s, created_after_s=30):
        cloud.time.update(format_datetime(START + timedelta(seconds=ahead_s), usegmt=True))
        cloud.created_at = START + timedelta(seconds=ahead_s + created_after_s)
        return cloud.time

    return skewed


@pytest.mark.parametrize("ahead_s", [-86_400, -200, 0, 200, 86_400])
def test_storage_is_billed_from_its_creation_to_its_deletion_by_the_clouds_clock(
    manager, cloud, ledger, events, skewed, ahead_s
):
    time = skewed(ahead_s)
    manager._context.clock.sleep(60)
    record = manager.create(REQUEST).record
    manager._context.clock.sleep(3600)
    manager.delete("sets", "us-east-1", delete_data=True)
    (entry,) = ledger.entries(cluster="storage sets")
    assert (entry.launched_at, record.created_at) == (cloud.created_at, cloud.created_at)
    assert abs((entry.closed_at - cloud.created_at).total_seconds() - 3630) <= 1
    assert entry.closed_at == time.now()
    notes = [event.text for event in events if "clock is" in event.text]
    side = "behind" if ahead_s > 0 else "ahead of"
    assert len(notes) == (ahead_s != 0)
    assert all(f"s {side} the cloud's; costs are counted by the cloud's clock" in note for note in notes)


@pytest.mark.parametrize("after_s", [-(10**10), 10**8])
def test_implausible_creation_time_is_replaced_by_the_time_before_the_creation(manager, ledger, skewed, after_s):
    time = skewed(200, after_s)
    before = time.now()
    manager.create(REQUEST)
    (entry,) = ledger.entries(cluster="storage sets")
    assert entry.launched_at == before


def test_lost_row_of_storage_is_restored_with_the_clouds_creation_time(manager, cloud, home, ledger, skewed, tmp_path):
    skewed(200)
    manager.create(REQUEST)
    with open_ledger(f"sqlite:///{tmp_path}/other.db") as other:
        context = replace(manager._context, ledger=other)
        again = StorageManager(cloud, context, "lab")
        again.delete("sets", "us-east-1", delete_data=True)
        (entry,) = other.entries(cluster="storage sets")
    assert entry.launched_at == cloud.created_at


def test_storage_of_a_killed_creation_is_billed_from_the_clouds_creation_time(manager, cloud, home, ledger, skewed):
    skewed(200)
    record = manager.create(REQUEST).record
    StorageRecords(home).save(record, state="making")  # as if the command was killed before it recorded the creation
    billing = manager._billing
    row = storage_spending(replace(record, token="killed"))
    billing.open(row)
    billing.ended("storage sets", ["killed"], found=True, created={"killed": cloud.created_at})
    entry = next(one for one in ledger.entries(cluster="storage sets") if one.spending.entry_id.startswith("killed"))
    assert (entry.launched_at, entry.state) == (cloud.created_at, "closed")
