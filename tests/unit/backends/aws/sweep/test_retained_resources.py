"""Storage and images in a sweep, from search to deletion."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.sweep import SweepRequest, SweepResult, retained_image, sweep_error
from cloudgpu.cloud import OwnImage, StoragePart, TaggedStorage
from cloudgpu.errors import AuthError, CloudError
from tests.tagged_resource import Resource

MADE = datetime(2026, 11, 21, 11, 0, tzinfo=UTC)
ANN = SweepRequest("ann")


def stored(name, *, keep="false", made_for="lab", owner="ann"):
    tags = {"cloudgpu:storage": name, "cloudgpu:kind": "lustre", "cloudgpu:owner": owner, "cloudgpu:token": name}
    tags |= {"cloudgpu:keep": keep, "cloudgpu:made-for": made_for}
    part = StoragePart("lustre", f"fs-{name}", "us-east-1", tags, "AVAILABLE", Decimal(1200), MADE, "SCRATCH_2")
    return TaggedStorage(name, name, "us-east-1", (part,))


@dataclass
class Stores:
    there: list = field(default_factory=list)
    stubborn: bool = False

    def found(self, region, name=""):
        return [storage for storage in self.there if storage.region == region and name in ("", storage.name)]

    def end(self, storage):
        if self.stubborn:
            return [f"{storage.parts[0].label}: it will not"]
        self.there.remove(storage)
        return []


class Images:
    def found(self, region, name=""):
        tags = {"cloudgpu:owner": "ann", "cloudgpu:gpu-architecture": "Volta"}
        return [OwnImage("ami-1", "base", region, "available", MADE, 200, ("snap-1",), tags)]


@pytest.fixture
def sweeping(workspace):
    workspace.cloud.regions = lambda: ("us-east-1",)
    workspace.cloud.anybodys = lambda region: []
    workspace.cloud.stores = Stores([stored("going"), stored("kept", keep="true", made_for="")])
    return AccountSweep(workspace.context, Images(), "us-east-1")


def test_sweep_deletes_storage_of_deleted_cluster_and_confirms(workspace, sweeping):
    seen = sweeping.plan([], ANN)
    assert [(resource.label, what.may_delete) for resource, what in seen.retained] == [
        ("storage going", True),
        ("storage kept", False),
        ("image base", False),
    ]
    swept = sweeping.delete_storage(seen, SweepResult(()))
    assert [storage.name for storage in swept.ended] == ["going"]
    assert [storage.name for storage in workspace.cloud.stores.there] == ["kept"]
    assert sweep_error(seen, swept) is None


def test_undeletable_storage_is_reported(workspace, sweeping):
    workspace.cloud.stores.stubborn = True
    seen = sweeping.plan([], ANN)
    failure = sweep_error(seen, sweeping.delete_storage(seen, SweepResult(())))
    assert "1 piece of storage is not confirmed deleted" in failure.message
    assert any("it will not" in line for line in failure.left)


def test_region_with_failed_storage_search_is_unknown(workspace, sweeping):
    def silent(region, name=""):
        raise CloudError("no answer")

    workspace.cloud.stores.found = silent
    seen = sweeping.plan([], ANN)
    assert dict(seen.unknown)["us-east-1"] == "no answer"
    assert seen.retained == ()


def test_missing_storage_permission_does_not_block_cluster_sweep(workspace, sweeping):
    def denied(region, name=""):
        raise AuthError("not authorized to perform elasticfilesystem:DescribeFileSystems")

    workspace.cloud.stores.found = denied
    seen = sweeping.plan([], ANN)
    assert seen.regions == ("us-east-1",)
    assert "DescribeFileSystems" in dict(seen.unseen)["us-east-1"]
    assert sweep_error(seen, SweepResult(())) is None


def test_image_cost_is_at_most_its_snapshot():
    (image,) = Images().found("us-east-1")
    assert retained_image(image).monthly_usd == Decimal(10)


def test_sweep_deletes_storage_only_after_its_cluster(workspace, sweeping):
    tags = {"cloudgpu:cluster": "lab", "cloudgpu:owner": "ann", "cloudgpu:token": "t"}
    node = Resource("instance", "i-1", "us-east-1", tags)
    workspace.cloud.anybodys = lambda region: [node] if region == "us-east-1" else []
    seen = sweeping.plan([], ANN)
    assert [storage.name for storage in seen.storage_to_delete] == ["going"]
    failed = SweepResult((), ((seen.clusters_to_delete[0], CloudError("no")),))
    assert sweeping.delete_storage(seen, failed) == SweepResult(())
    assert sweeping.delete_storage(seen, SweepResult(seen.clusters_to_delete)).ended == seen.storage_to_delete


def test_storage_still_in_use_is_not_deleted(workspace, sweeping):
    plan = sweeping.plan([], ANN)
    workspace.cloud.stores.there[0] = replace(workspace.cloud.stores.there[0], users=("i-9 (cluster lab)",))
    ((storage, err),) = sweeping.delete_storage(plan, SweepResult(())).failed
    assert (storage.name, "i-9" in err.message) == ("going", True)
    assert len(workspace.cloud.stores.there) == 2
