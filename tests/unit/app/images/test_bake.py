"""Name, cost and JSON document of a baked image."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.app.images.bake import BakedImage, ImageBaker, _image_id, bake_cluster_name, retained_spending
from cloudgpu.aws.ec2.baked_images import OwnImage
from cloudgpu.errors import UsageError

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
    record = workspace.provisioning.up(plan, "demo").record
    spending = retained_spending("base", record, plan)
    assert (spending.noun, spending.name, spending.region) == ("image", "base", "us-east-1")
    assert spending.monthly_usd > 0


def test_image_and_snapshots_get_the_clusters_own_tags(make, workspace):
    plan = make.plan(make.candidate())
    provisioned = workspace.provisioning.up(plan, "demo")
    record = provisioned.record
    config = {**record.placement.config, "tags": '{"CostCenter": "42"}'}
    tagged = replace(provisioned, record=replace(record, placement=replace(record.placement, config=config)))
    tags = ImageBaker(workspace.context, None, None, None)._tags(plan, tagged)
    assert tags["CostCenter"] == "42"
    assert tags["cloudgpu:owner"] == record.identity.owner
