"""A create that is refused because its name is taken: by our own lost call, or by somebody else."""

import pytest

from cloudgpu.errors import BadRequestError

TAKEN = BadRequestError("The thing 'a' already exists", code="InvalidThing.Duplicate")


def refused_at(workspace, moment):
    def script(said, about):
        if said == moment:
            raise TAKEN

    workspace.cloud.script = script


def test_what_our_own_lost_call_made_is_taken_over(workspace):
    refused_at(workspace, "created")
    applied = workspace.up('Thing("a")')
    assert applied.changes == {"create": 1}
    assert len(workspace.cloud.named("a")) == 1
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.named("a") == []


def test_what_somebody_else_made_is_left_alone(workspace):
    refused_at(workspace, "create")
    with pytest.raises(BadRequestError, match="already exists"):
        workspace.up('Thing("a")')
    assert workspace.cloud.named("a") == []


def test_another_refusal_is_no_reason_to_look(workspace):
    def script(said, about):
        if said == "created":
            raise BadRequestError("no such size", code="InvalidParameterValue")

    workspace.cloud.script = script
    with pytest.raises(BadRequestError, match="no such size"):
        workspace.up('Thing("a")')
