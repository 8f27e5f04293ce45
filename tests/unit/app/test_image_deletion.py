"""`image delete` when one step fails: everything else is still deleted, and the failure is reported."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime

import pytest

from cloudgpu.app.images import ImageBaker, bake_cluster_name, delete_image
from cloudgpu.aws.session.session import ServerTime
from cloudgpu.backends.billing.retained_billing import RetainedBilling, retained_spending
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.cloud import OwnImage
from cloudgpu.errors import AuthError, CloudError, TeardownError, UsageError
from cloudgpu.run.progress import Stages
from cloudgpu.state.cluster_record import ClusterIdentity
from tests.manual_clock import ManualClock
from tests.unit.app.conftest import START

AT = datetime(2026, 11, 20, tzinfo=UTC)


def image(image_id):
    return OwnImage(image_id, "base", "us-east-1", "available", AT, 10, ("snap-1",), {"cloudgpu:token": "t"})


@dataclass
class Images:
    there: list = field(default_factory=list)
    refused: str = ""
    time: ServerTime = field(default_factory=lambda: ServerTime(ManualClock(START)))

    def found(self, region, name=""):
        return list(self.there)

    def end(self, image):
        if image.id == self.refused:
            raise AuthError(f"not authorized to deregister {image.id}")
        self.there.remove(image)


@pytest.fixture
def store():
    return Images([image("ami-1"), image("ami-2")])


def test_failed_image_deletion_does_not_stop_the_other_image(workspace, store):
    store.refused = "ami-1"
    with pytest.raises(AuthError):
        delete_image(workspace.context, store, "us-east-1", "base")
    assert [image.id for image in store.there] == ["ami-1"]


def test_failed_node_deletion_does_not_stop_image_deletion(workspace, make, store):
    workspace.provisioning.create(make.plan(make.candidate()), bake_cluster_name("base"))
    workspace.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
    store.refused = "ami-2"
    with pytest.raises(TeardownError) as caught:
        delete_image(workspace.context, store, "us-east-1", "base")
    assert [image.id for image in store.there] == ["ami-2"]
    assert caught.value.left == ("us-east-1: cannot reach ec2.us-east-1", "not authorized to deregister ami-2")
    assert caught.value.hint == "cloudgpu image delete base"


def bill(workspace, *, region="us-east-1", made=True, token=""):
    """Open the row of the image `base`, as a bake does."""
    cloud = workspace.context.cloud
    creator = ClusterIdentity(
        "bake-base", token or f"t-{region}", "ada", "", "bake", "aws", cloud.account(), cloud.endpoint, START, "up"
    )
    spending = retained_spending("image", "base", "snapshot", creator, region, Decimal(10))
    billing = RetainedBilling(workspace.context.ledger, workspace.clock.now)
    billing.open(spending)
    if made:
        billing.made(spending, "ami-1", START)


def rows(workspace):
    return {entry.spending.region: entry for entry in workspace.context.ledger.entries(cluster="image base")}


def test_row_left_by_killed_deletion_is_closed_as_estimate(workspace):
    bill(workspace)
    bill(workspace, region="eu-west-1")
    with pytest.raises(UsageError) as caught:
        delete_image(workspace.context, Images(), "us-east-1", "base")
    assert "its ledger row is now closed" in caught.value.hint
    here, elsewhere = rows(workspace)["us-east-1"], rows(workspace)["eu-west-1"]
    assert here.state == "closed"
    assert [part.estimated for part in here.parts.values()] == [True]
    assert elsewhere.state == "open"


def test_row_left_by_a_killed_deletion_is_closed_with_the_next_image_of_that_name(workspace):
    """The deletion of the new image used to close only the new image's row."""
    bill(workspace)
    bill(workspace, token="t")
    delete_image(workspace.context, Images([image("ami-2")]), "us-east-1", "base")
    closed = {row.spending.entry_id: row for row in workspace.context.ledger.entries(cluster="image base")}
    assert {row.state for row in closed.values()} == {"closed"}
    estimated = {entry_id: [part.estimated for part in row.parts.values()] for entry_id, row in closed.items()}
    assert estimated == {"t-us-east-1/image": [True], "t/image": []}


def test_row_left_by_a_killed_deletion_is_closed_by_the_next_bake(workspace, make):
    bill(workspace)
    workspace.cloud.refusals["us-east-1c"] = CloudError("cannot reach ec2.us-east-1")
    baker = ImageBaker(workspace.context, Requester("ann", "", ""), Images(), Stages(workspace.clock, lambda _: None))
    with pytest.raises(CloudError):
        baker.bake(make.plan(make.candidate()), "base")
    assert rows(workspace)["us-east-1"].state == "closed"


def test_row_of_image_still_being_baked_stays_open(workspace):
    bill(workspace, made=False)
    with pytest.raises(UsageError) as caught:
        delete_image(workspace.context, Images(), "us-east-1", "base")
    assert "ledger" not in caught.value.hint
    assert rows(workspace)["us-east-1"].state == "open"


@pytest.mark.parametrize("ahead_s", [-86_400, 0, 200])
def test_image_is_billed_from_its_creation_to_its_deletion_by_the_clouds_clock(workspace, ahead_s):
    """The bake was killed before it recorded the creation."""
    bill(workspace, made=False)
    created = START + timedelta(seconds=ahead_s + 30)
    there = [replace(image("ami-1"), made_at=created, tags={"cloudgpu:token": "t-us-east-1"})]
    store = Images(there, time=ServerTime(workspace.clock))
    store.time.update(format_datetime(START + timedelta(seconds=ahead_s), usegmt=True))
    workspace.clock.sleep(3600)
    delete_image(workspace.context, store, "us-east-1", "base")
    entry = rows(workspace)["us-east-1"]
    assert (entry.launched_at, entry.closed_at) == (created, store.time.now())
    assert sum("costs are counted by the cloud's clock" in note for note in workspace.notes) == (ahead_s != 0)
