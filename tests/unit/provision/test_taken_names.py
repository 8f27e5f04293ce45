"""A create that is refused because its name is taken: by our own lost call, or by somebody else."""

import pytest

from cloudgpu.errors import BadRequestError

TAKEN = BadRequestError("The thing 'a' already exists", code="InvalidThing.Duplicate")


def refused_at(bench, moment):
    def script(said, about):
        if said == moment:
            raise TAKEN

    bench.cloud.script = script


def test_what_our_own_lost_call_made_is_taken_over(bench):
    refused_at(bench, "created")
    applied = bench.up('Thing("a")')
    assert applied.changes == {"create": 1}
    assert len(bench.cloud.named("a")) == 1
    bench.revive()
    bench.destroy()
    assert bench.cloud.named("a") == []


def test_what_somebody_else_made_is_left_alone(bench):
    refused_at(bench, "create")
    with pytest.raises(BadRequestError, match="already exists"):
        bench.up('Thing("a")')
    assert bench.cloud.named("a") == []


def test_another_refusal_is_no_reason_to_look(bench):
    def script(said, about):
        if said == "created":
            raise BadRequestError("no such size", code="InvalidParameterValue")

    bench.cloud.script = script
    with pytest.raises(BadRequestError, match="no such size"):
        bench.up('Thing("a")')
