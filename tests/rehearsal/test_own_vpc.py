"""A cluster in a VPC of its own: made with it, used by a run, gone with it."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_a_cluster_makes_its_own_vpc_and_takes_it_away(workspace):
    workspace.recipe()
    own = {"CLOUDGPU_CREATE_VPC": "true"}
    outcome = workspace.json("train", "plain", "--yes", "--keep", env=own)
    assert outcome["state"] == "succeeded"
    assert len(workspace.left()["vpcs"]) == 1
    workspace.run("down", outcome["cluster"], env=own)
    assert workspace.left() == {}
