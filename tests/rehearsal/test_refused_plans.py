"""Plans that the cloud's own answers refuse: what is offered is typed back, and then it can be bought."""

import shlex

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

QUOTAS = {"us-east-1/p/on-demand": 96, "us-east-1/p/spot": 0}


@pytest.fixture(scope="module")
def workspace(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("workspace")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        client.put_quotas(made.cloud, QUOTAS)
        yield made


def plan(workspace, *options, code=0):
    return workspace.json("plan", "plain", *options, code=code)


def test_a_quota_of_96_is_too_small_for_two_and_every_way_past_it_is_one(workspace):
    refused = plan(workspace, code=7)
    (error,) = [one for one in refused["findings"] if one["severity"] == "error"]
    assert error["check"] == "quota"
    assert "192" in error["message"]
    assert "L-417A185B" in error["message"]
    offered = [one["command"] for one in error["remedies"]]
    assert "--set resources.nodes=1" in offered
    assert "--set resources.market=spot" not in offered  # there is no quota for it either
    for command in offered:
        assert plan(workspace, *shlex.split(command))["candidates"]


def test_a_retired_type_is_replaced_by_what_the_screen_says(workspace):
    done = workspace.run("up", "plain", "--yes", "--set", "resources.instance_type=p3.16xlarge", code=7)
    hint = next(line for line in done.stderr.splitlines() if line.startswith("hint: "))
    options = shlex.split(hint.removeprefix("hint: "))
    workspace.run(
        "up", "plain", "--yes", "--name", "replaced", "--set", "resources.instance_type=p3.16xlarge", *options
    )
    workspace.run("down", "replaced", "--yes")
    assert workspace.left() == {}
