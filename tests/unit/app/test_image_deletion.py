"""`image delete` where one part fails: everything else is deleted all the same, and the failure is reported."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from cloudgpu.app.images import bake_cluster, delete
from cloudgpu.aws.own_images import OwnImage
from cloudgpu.errors import AuthError, CloudError, TeardownError

AT = datetime(2026, 11, 20, tzinfo=UTC)


def image(image_id):
    return OwnImage(image_id, "base", "us-east-1", "available", AT, 10, ("snap-1",), {"cloudgpu:token": "t"})


@dataclass
class Images:
    there: list = field(default_factory=list)
    refused: str = ""

    def found(self, region, name=""):
        return list(self.there)

    def end(self, one):
        if one.id == self.refused:
            raise AuthError(f"not authorized to deregister {one.id}")
        self.there.remove(one)


@pytest.fixture
def store():
    return Images([image("ami-1"), image("ami-2")])


def test_one_image_that_fails_does_not_keep_the_other(bench, store):
    store.refused = "ami-1"
    with pytest.raises(AuthError):
        delete(bench.desk, store, "us-east-1", "base")
    assert [one.id for one in store.there] == ["ami-1"]


def test_a_node_that_fails_does_not_keep_the_image(bench, make, store):
    bench.provisioning.up(make.plan(make.candidate()), bake_cluster("base"))
    bench.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
    store.refused = "ami-2"
    with pytest.raises(TeardownError) as caught:
        delete(bench.desk, store, "us-east-1", "base")
    assert [one.id for one in store.there] == ["ami-2"]
    assert caught.value.left == ("cannot reach ec2.us-east-1", "not authorized to deregister ami-2")
    assert caught.value.hint == "cloudgpu image delete base"
