"""A creation rejected because the name is taken, by our own lost call or by another creator."""

import pytest

from cloudgpu.errors import BadRequestError

TAKEN = BadRequestError("The thing 'a' already exists", code="InvalidThing.Duplicate")


def refused_at(workspace, moment):
    def script(said, about):
        if said == moment:
            raise TAKEN

    workspace.cloud.script = script


def test_resource_created_by_own_lost_call_is_adopted(workspace):
    refused_at(workspace, "created")
    applied = workspace.up('Thing("a")')
    assert applied.changes == {"create": 1}
    assert len(workspace.cloud.named("a")) == 1
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.named("a") == []


def test_taken_name_of_other_creator_is_rejected(workspace):
    refused_at(workspace, "create")
    with pytest.raises(BadRequestError, match="already exists"):
        workspace.up('Thing("a")')
    assert workspace.cloud.named("a") == []


def test_other_rejection_does_not_adopt_resource(workspace):
    def script(said, about):
        if said == "created":
            raise BadRequestError("no such size", code="InvalidParameterValue")

    workspace.cloud.script = script
    with pytest.raises(BadRequestError, match="no such size"):
        workspace.up('Thing("a")')
