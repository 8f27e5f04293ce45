"""A cluster in a VPC of its own: created with the cluster, used by a run, deleted with the cluster."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_cluster_creates_and_deletes_its_own_vpc(workspace):
    workspace.recipe()
    own = {"CLOUDGPU_CREATE_VPC": "true"}
    outcome = workspace.json("train", "plain", "--yes", "--keep", env=own)
    assert outcome["state"] == "succeeded"
    assert len(workspace.left()["vpcs"]) == 1
    workspace.run("down", outcome["cluster"], env=own)
    assert workspace.left() == {}
