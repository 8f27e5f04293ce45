"""A scripted storage cloud, and a manager of storage that uses it."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.aws.storage_manager import StorageManager
from cloudgpu.backends.base import Context
from cloudgpu.backends.storage import StorageRequest
from cloudgpu.cloud import StoragePart, TaggedStorage
from cloudgpu.engine.base import AppliedStack
from cloudgpu.errors import (
    BadRequestError,
)
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen
from cloudgpu.state.record_store import RecordStore
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
REQUEST = StorageRequest("sets", "lustre", "us-east-1", False, {"zone": "us-east-1c", "sizeGib": "1200"})


VPC = RegionNetwork(
    "vpc-1",
    subnets=(
        SubnetSeen("subnet-1", "us-east-1c", size=251, free=251, way_out="nat", target="nat-1"),
        SubnetSeen("subnet-2", "us-east-1c", size=251, free=251, way_out="public", target="igw-1"),
    ),
)


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
    """A cloud whose engine creates one file system and whose search finds it."""

    target: str = "aws"
    endpoint: str = ""
    simulated: bool = False
    account_id: str = "111122223333"
    refuses: Exception | None = None
    refuses_end: list = field(default_factory=list)
    destroys: bool = True
    there: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    seen: object = None
    requested_engine: str = ""
    buckets: tuple = ()
    hint: str = ""
    vpc: object = VPC
    time: ServerTime | None = None
    created_at: datetime | None = None

    def account(self):
        return self.account_id

    @property
    def storage(self):
        return self

    def engine(self, record):
        self.record = record
        return self

    def up(self, stack, on_event):
        self.calls.append("up")
        self.stack = stack
        made = held(self.record, keep=stack.config["keep"])
        data = replace(made.parts[0], created_at=self.created_at)
        self.there.append(replace(made, parts=(data, *made.parts[1:])))
        if self.seen:
            self.seen(stack)
        if self.refuses:
            raise self.refuses
        return AppliedStack({"kind": "lustre", "id": "fs-1", "mountName": "mnt"})

    def destroy(self, stack, on_event):
        self.calls.append("destroy")
        if self.destroys:
            self.there = [storage for storage in self.there if storage.token != self.record.token]

    def found(self, region, name=""):
        return [storage for storage in self.there if storage.region == region and name in ("", storage.name)]

    def network(self, region, request):
        return self.vpc

    def require_bucket(self, region, url):
        if url not in self.buckets:
            raise BadRequestError(f"there is no bucket {url}", code="NoSuchBucket")

    def role_hint(self, record, cause):
        return self.hint

    def empty(self, storage):
        self.calls.append("empty")

    def end(self, storage):
        self.calls.append("end")
        if not self.refuses_end:
            self.there.remove(storage)
        return list(self.refuses_end)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").ensure()


@pytest.fixture
def cloud():
    return ScriptedStorage()


@pytest.fixture
def events():
    return []


@pytest.fixture
def ledger(home):
    with open_ledger(f"sqlite:///{home.ledger_db}") as opened:
        yield opened


@pytest.fixture
def manager(cloud, home, events, ledger):
    clock = ManualClock(START)
    cloud.time = ServerTime(clock)
    context = Context(
        backend=None,  # not called: the manager receives the cloud
        ledger=ledger,
        records=RecordStore(home),
        home=home,
        clock=clock,
        owner="ada",
        emit=events.append,
    )
    return StorageManager(cloud, context, "lab")
