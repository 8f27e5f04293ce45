"""Name, cost and JSON document of a baked image."""

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import pytest

from cloudgpu.app.images import BakedImage, ImageBaker, _image_id, bake_cluster_name, image_spending
from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.cloud import OwnImage
from cloudgpu.errors import UsageError
from tests.unit.app.conftest import START

IMAGE = OwnImage("ami-1", "base", "us-east-1", "available", datetime(2026, 11, 21, tzinfo=UTC), 10, ("snap-1",), {})


def test_baked_image_json_has_image_id_snapshots_and_cost():
    shown = BakedImage(IMAGE, Decimal("1.04"), simulated=True).as_json()
    assert (shown["id"], shown["snapshots"], shown["simulated"]) == ("ami-1", ["snap-1"], True)
    assert shown["cost"] == {"usd": "1.04", "simulated": True}
    assert Decimal(shown["at_most_usd_per_month"]) > 0


def test_image_with_interrupted_deletion_is_named_by_its_snapshot():
    assert (_image_id(IMAGE), _image_id(replace(IMAGE, id=""))) == ("ami-1", "snap-1")


def test_image_name_too_long_for_bake_cluster_is_rejected():
    assert bake_cluster_name("base") == "bake-base"
    with pytest.raises(UsageError, match="longer than 34 characters"):
        bake_cluster_name("b" * 35)


def test_ledger_entry_has_upper_bound_for_snapshot_cost(make, workspace):
    plan = make.plan(make.candidate())
    record = workspace.provisioning.create(plan, "demo").record
    spending = image_spending("base", record, plan)
    assert (spending.market, spending.cluster, spending.region) == ("image", "image base", "us-east-1")
    assert spending.beside[0].hourly_usd > 0


def test_image_and_snapshots_get_the_clusters_own_tags(make, workspace):
    plan = make.plan(make.candidate())
    provisioned = workspace.provisioning.create(plan, "demo")
    record = provisioned.record
    config = {**record.placement.config, "tags": '{"CostCenter": "42"}'}
    tagged = replace(provisioned, record=replace(record, placement=replace(record.placement, config=config)))
    tags = ImageBaker(workspace.context, None, None, None)._tags(plan, tagged)
    assert tags["CostCenter"] == "42"
    assert tags["cloudgpu:owner"] == record.identity.owner


@dataclass
class Store:
    """A store whose images have the creation time `made_at`, and whose clock is 2000 s ahead of this machine's."""

    time: ServerTime
    made_at: datetime
    there: list = field(default_factory=list)

    def found(self, region, name=""):
        return list(self.there)

    def make(self, region, instance_id, name, tags):
        self.time.update(format_datetime(START + timedelta(seconds=2000), usegmt=True))
        self.there.append(replace(IMAGE, made_at=self.made_at, tags=tags))
        return IMAGE.id

    def ready(self, region, name):
        return self.there[0]


class Stages:
    def stage(self, name):
        return nullcontext()


class Baker(ImageBaker):
    def _strip(self, provisioned):
        pass


@pytest.fixture
def baking(workspace):
    made_at = START + timedelta(seconds=2030)
    requester = Requester(workspace.owner, "vision", "ssh-ed25519 AAAA")
    return Baker(workspace.context, requester, Store(ServerTime(workspace.clock), made_at), Stages())


def image_row(workspace):
    (entry,) = workspace.ledger.entries(cluster="image base")
    return entry


def test_image_is_billed_from_the_creation_time_of_the_cloud(workspace, make, baking):
    baking.bake(make.plan(make.candidate(), nodes=1), "base")
    assert image_row(workspace).launched_at == baking.store.made_at


@pytest.mark.parametrize("made_at", [datetime.fromtimestamp(0, UTC), START + timedelta(days=30)])
def test_implausible_creation_time_of_an_image_is_not_used(workspace, make, baking, made_at):
    baking.store.made_at = made_at
    baking.bake(make.plan(make.candidate(), nodes=1), "base")
    assert image_row(workspace).launched_at == START


def test_resumed_bake_bills_the_image_that_a_killed_bake_did_not_record(workspace, make, baking):
    plan = make.plan(make.candidate(), nodes=1)
    workspace.provisioning.create(plan, bake_cluster_name("base"))
    baking.store.there.append(replace(IMAGE, made_at=START))
    workspace.clock.sleep(600)
    baking.bake(plan, "base")
    assert (image_row(workspace).launched_at, image_row(workspace).instance_ids) == (START, ("ami-1",))
