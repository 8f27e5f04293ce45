"""Plans that the cloud's own answers refuse: what is offered is typed back, and then it can be bought."""

import shlex

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

QUOTAS = {"us-east-1/p/on-demand": 96, "us-east-1/p/spot": 0}


@pytest.fixture(scope="module")
def desk(make_bench, tmp_path_factory):
    with make_bench(tmp_path_factory.mktemp("desk")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        client.put_quotas(made.cloud, QUOTAS)
        yield made


def plan(desk, *options, code=0):
    return desk.json("plan", "plain", *options, code=code)


def test_a_quota_of_96_is_too_small_for_two_and_every_way_past_it_is_one(desk):
    refused = plan(desk, code=7)
    (error,) = [one for one in refused["findings"] if one["severity"] == "error"]
    assert error["check"] == "quota"
    assert "192" in error["message"]
    assert "L-417A185B" in error["message"]
    offered = [one["command"] for one in error["remedies"]]
    assert "--set resources.nodes=1" in offered
    assert "--set resources.market=spot" not in offered  # there is no quota for it either
    for command in offered:
        assert plan(desk, *shlex.split(command))["candidates"]


def test_a_retired_type_is_replaced_by_what_the_screen_says(desk):
    done = desk.run("up", "plain", "--yes", "--set", "resources.instance_type=p3.16xlarge", code=7)
    hint = next(line for line in done.stderr.splitlines() if line.startswith("hint: "))
    options = shlex.split(hint.removeprefix("hint: "))
    desk.run("up", "plain", "--yes", "--name", "replaced", "--set", "resources.instance_type=p3.16xlarge", *options)
    desk.run("down", "replaced", "--yes")
    assert desk.left() == {}
