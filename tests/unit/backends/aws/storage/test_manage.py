"""`storage create` and `storage delete`: what is made once, what is refused, and what has to be confirmed."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.aws.storage.storage_tags import StoragePart, TaggedStorage
from cloudgpu.backends.aws.storage.manage import StorageManager
from cloudgpu.backends.aws.storage.overview import list_storage
from cloudgpu.backends.base import Context
from cloudgpu.backends.storage import StorageRequest
from cloudgpu.clock import ManualClock
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import BusyError, CapacityError, CloudError, StateError, TeardownError, UsageError
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.state.cluster_and_run_records import RecordStore
from cloudgpu.state.storage_records import StorageRecords

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REQUEST = StorageRequest("sets", "lustre", "us-east-1", False, {"zone": "us-east-1c", "sizeGib": "1200"})


def held(record, *, users=(), kind="lustre", keep="true") -> TaggedStorage:
    tags = {
        "cloudgpu:storage": record.name,
        "cloudgpu:kind": kind,
        "cloudgpu:owner": record.owner,
        "cloudgpu:keep": keep,
        "cloudgpu:token": record.token,
    }
    size = Decimal(1200)
    parts = (
        StoragePart(kind, "fs-1", record.region, tags, "AVAILABLE", size, START, "SCRATCH_2"),
        StoragePart("security-group", "sg-1", record.region, tags),
    )
    return TaggedStorage(record.name, record.token, record.region, parts, users)


@dataclass
class ScriptedStorage:
    """A cloud whose engine makes one file system, and whose search shows what was made."""

    target: str = "aws"
    endpoint: str = ""
    account_id: str = "111122223333"
    refuses: Exception | None = None
    refuses_end: list = field(default_factory=list)
    destroys: bool = True
    there: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    seen: object = None
    requested_engine: str = ""

    def account(self):
        return self.account_id

    def engine(self, record):
        self.record = record
        return self

    def up(self, stack, on_event):
        self.calls.append("up")
        self.stack = stack
        self.there.append(held(self.record, keep=stack.config["keep"]))
        if self.seen:
            self.seen(stack)
        if self.refuses:
            raise self.refuses
        return AppliedStack({"kind": "lustre", "id": "fs-1", "mountName": "mnt"})

    def destroy(self, stack, on_event):
        self.calls.append("destroy")
        if self.destroys:
            self.there = [one for one in self.there if one.token != self.record.token]

    def found(self, region, name=""):
        return [one for one in self.there if one.region == region and name in ("", one.name)]

    def empty(self, one):
        self.calls.append("empty")

    def end(self, one):
        self.calls.append("end")
        if not self.refuses_end:
            self.there.remove(one)
        return list(self.refuses_end)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def cloud():
    return ScriptedStorage()


@pytest.fixture
def told():
    return []


@pytest.fixture
def ledger(home):
    with open_ledger(f"sqlite:///{home.ledger_db}") as opened:
        yield opened


@pytest.fixture
def room(cloud, home, told, ledger):
    context = Context(
        backend=None,  # not called: the manager receives the cloud
        ledger=ledger,
        records=RecordStore(home),
        home=home,
        clock=ManualClock(START),
        owner="ada",
        emit=told.append,
    )
    return StorageManager(cloud, context, "lab")


def test_what_is_made_is_recorded_before_the_first_call(room, cloud, home):
    def seen(stack):
        record = StorageRecords(home).get("sets")
        assert (record.state, record.token) == ("making", stack.config["token"])

    cloud.seen = seen
    created = room.create(REQUEST)
    assert created.made
    assert created.record.access_details["mount_name"] == "mnt"
    config = cloud.stack.config
    assert (config["storage"], config["owner"], config["keep"], config["protect"]) == ("sets", "ada", "true", "false")
    assert cloud.stack.program.name == "storage"
    assert cloud.stack.journal == home.root / "storage" / "sets" / "us-east-1.journal"


def test_a_second_create_is_no_call_at_all(room, cloud):
    token = room.create(REQUEST).record.token
    again = room.create(REQUEST)
    assert (again.made, again.record.token) == (False, token)
    assert cloud.calls == ["up"]


@pytest.mark.parametrize(
    "changes", [{"kind": "efs"}, {"disposable": True}, {"region": "us-west-2"}, {"config": {"sizeGib": "2400"}}]
)
def test_another_thing_of_the_same_name_is_refused(room, changes):
    room.create(REQUEST)
    with pytest.raises(UsageError, match="already exists with different options"):
        room.create(replace(REQUEST, **changes))


def test_it_is_carried_on_by_the_engine_that_began_it(room, cloud, home):
    cloud.requested_engine = "pulumi"
    assert room.create(REQUEST).record.engine == "pulumi"
    cloud.requested_engine = "direct"
    with pytest.raises(UsageError, match="created with the pulumi engine, not direct"):
        room.create(REQUEST)
    cloud.requested_engine = ""  # whoever names none gets the right one
    assert not room.create(REQUEST).made
    assert StorageRecords(home).get("sets").engine == "pulumi"


def test_an_engine_that_cannot_work_is_told_before_anything_is_written(room, cloud, home, monkeypatch):
    def engine(record):
        raise UsageError("there is no Pulumi CLI")

    monkeypatch.setattr(cloud, "engine", engine)
    with pytest.raises(UsageError, match="no Pulumi CLI"):
        room.create(REQUEST)
    assert StorageRecords(home).all() == []


def test_somebody_elses_of_the_same_name_is_refused_and_left(room, cloud, home):
    room.create(REQUEST)
    cloud.there[0].parts[0].tags["cloudgpu:owner"] = "bob"
    StorageRecords(home).forget("sets")
    with pytest.raises(UsageError, match="belongs to bob"):
        room.create(REQUEST)
    with pytest.raises(UsageError, match="belongs to bob"):
        room.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_what_could_not_be_made_is_ended_at_once(room, cloud, home):
    cloud.refuses = CapacityError("no Lustre left")
    with pytest.raises(CapacityError, match="no Lustre left"):
        room.create(REQUEST)
    assert cloud.calls == ["up", "empty", "destroy"]
    assert StorageRecords(home).get("sets") is None
    assert cloud.there == []


def test_what_could_neither_be_made_nor_ended_is_told_as_both(room, cloud, home):
    cloud.refuses, cloud.destroys, cloud.refuses_end = CapacityError("no Lustre left"), False, ["lustre fs-1: busy"]
    with pytest.raises(
        TeardownError, match="no Lustre left; and the partly created storage could not be deleted"
    ) as caught:
        room.create(REQUEST)
    assert caught.value.left == ("lustre fs-1: busy",)
    assert caught.value.hint == "cloudgpu storage delete sets"
    assert StorageRecords(home).get("sets").state == "making"


def test_a_killed_create_goes_on_under_its_own_token(room, cloud, home):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        room.create(REQUEST)
    token = StorageRecords(home).get("sets").token
    cloud.refuses = None
    assert room.create(REQUEST).record.token == token


def test_data_that_was_to_be_kept_needs_more_than_its_name(room, cloud):
    room.create(REQUEST)
    for call in (room.delete, room.find_deletable):
        with pytest.raises(UsageError, match="contains protected data") as caught:
            call("sets", "us-east-1", delete_data=False)
        assert caught.value.hint == "run `cloudgpu storage delete sets --delete-data` to delete it permanently"
    assert cloud.calls == ["up"]
    deleted = room.delete("sets", "us-west-2", delete_data=True)
    assert deleted.known
    assert deleted.parts == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")


def test_disposable_data_goes_by_its_name(room, cloud, home):
    room.create(replace(REQUEST, disposable=True))
    room.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []
    assert StorageRecords(home).get("sets") is None


def test_what_never_stood_holds_nothing(room, cloud):
    cloud.refuses = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        room.create(REQUEST)
    room.delete("sets", "us-east-1", delete_data=False)
    assert cloud.there == []


def test_what_is_in_use_stays(room, cloud):
    record = room.create(replace(REQUEST, disposable=True)).record
    cloud.there = [held(record, users=("i-1 (cluster demo)",), keep="false")]
    with pytest.raises(BusyError, match=r"in use by i-1 \(cluster demo\)"):
        room.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up"]


def test_a_bucket_cannot_tell_its_users_and_goes_all_the_same(room, cloud):
    record = room.create(REQUEST).record
    cloud.there = [held(record, users=None, kind="s3")]
    room.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy"]


def test_what_the_journal_did_not_know_is_ended_by_its_tags(room, cloud):
    room.create(REQUEST)
    cloud.destroys = False
    room.delete("sets", "us-east-1", delete_data=True)
    assert cloud.calls == ["up", "empty", "destroy", "end"]


def test_it_is_gone_only_when_a_second_search_is_empty(room, cloud, home):
    room.create(REQUEST)
    cloud.destroys = False
    cloud.end = lambda one: []
    with pytest.raises(TeardownError, match="storage sets is not deleted") as caught:
        room.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("lustre fs-1 (AVAILABLE) in us-east-1", "security-group sg-1 in us-east-1")
    assert StorageRecords(home).get("sets").state == "deleting"
    with pytest.raises(BusyError, match="being deleted"):
        room.create(REQUEST)


@pytest.mark.parametrize("lost", ["forgotten", "damaged"])
def test_without_a_record_the_tags_tell_whether_it_was_to_be_kept(room, cloud, home, lost):
    room.create(REQUEST)
    if lost == "forgotten":
        StorageRecords(home).forget("sets")
    else:
        home.storage("sets").record.write_text("{")
    with pytest.raises(UsageError, match="protected data"):
        room.delete("sets", "us-east-1", delete_data=False)
    assert room.delete("sets", "us-east-1", delete_data=True).known is False
    assert cloud.calls == ["up", "end"]


def test_nothing_to_delete_is_success(room, home):
    assert room.delete("sets", "us-east-1", delete_data=False).parts == ()
    assert not (home.root / "storage" / "sets").exists()


def test_another_account_is_never_taken_for_its_end(room, cloud):
    room.create(REQUEST)
    cloud.account_id = "999900001111"
    with pytest.raises(StateError, match="created in account 111122223333"):
        room.delete("sets", "us-east-1", delete_data=True)


def test_the_list_has_everybodys_and_what_is_not_found(room, cloud, home):
    record = room.create(REQUEST).record
    cloud.there.append(held(replace(record, name="bobs", token="t2", owner="bob"), users=("i-1",)))
    room.create(replace(REQUEST, name="lost", region="us-west-2"))
    cloud.there = [one for one in cloud.there if one.name != "lost"]
    rows = list_storage(cloud, StorageRecords(home).all(), "us-east-1")
    assert [(row.name, row.owner, row.state, row.users, row.monthly_usd) for row in rows] == [
        ("bobs", "bob", "available", ("i-1",), Decimal("168.00")),
        ("lost", "ada", "not found", None, None),
        ("sets", "ada", "available", (), Decimal("168.00")),
    ]
    other = ScriptedStorage(target="rehearsal", endpoint="rehearsal:x")
    assert list_storage(other, StorageRecords(home).all(), "us-east-1") == ()


def test_a_bucket_that_cannot_be_emptied_and_a_damaged_journal_keep_nothing_else(room, cloud, monkeypatch):
    room.create(REQUEST)

    def damaged(stack, on_event):
        raise StateError("the journal is damaged")

    def denied(one):
        raise CloudError("not authorized to perform s3:DeleteObject")

    monkeypatch.setattr(cloud, "destroy", damaged)
    monkeypatch.setattr(cloud, "empty", denied)
    with pytest.raises(TeardownError) as caught:
        room.delete("sets", "us-east-1", delete_data=True)
    assert caught.value.left == ("not authorized to perform s3:DeleteObject",)
    # What only the tags know was deleted although the journal and the bucket failed.
    assert cloud.there == []
