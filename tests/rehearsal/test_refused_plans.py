"""Plans that the cloud's limits reject: the suggested options are applied, and the plan then succeeds."""

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


def test_every_remedy_for_an_exceeded_quota_gives_a_valid_plan(workspace):
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


def test_hint_for_a_retired_type_makes_up_succeed(workspace):
    done = workspace.run("up", "plain", "--yes", "--set", "resources.instance_type=p3.16xlarge", code=7)
    hint = next(line for line in done.stderr.splitlines() if line.startswith("hint: "))
    options = shlex.split(hint.removeprefix("hint: "))
    workspace.run(
        "up", "plain", "--yes", "--name", "replaced", "--set", "resources.instance_type=p3.16xlarge", *options
    )
    workspace.run("down", "replaced", "--yes")
    assert workspace.left() == {}


def test_several_spot_nodes_are_refused_with_the_pulumi_engine_before_anything_is_created(workspace):
    spot = ("--set", "resources.market=spot")
    planned = plan(workspace, *spot, "--engine", "pulumi", "--set", "resources.instance_type=g4dn.xlarge", code=7)
    (error,) = [one for one in planned["findings"] if one["severity"] == "error"]
    assert error["check"] == "all-or-none"
    assert error["fix"] == "--engine direct, or --set resources.market=on-demand"
    up = ("up", "plain", "--yes", *spot, "--set", "resources.instance_type=g4dn.xlarge")
    done = workspace.run(*up, "--engine", "pulumi", code=7)
    assert "the pulumi engine cannot launch 2 spot nodes all or none" in done.stderr
    assert not workspace.home.cluster("plain").record.exists()
    assert workspace.left() == {}
    one = ("--set", "resources.nodes=1")
    assert plan(workspace, *spot, *one, "--engine", "pulumi", "--set", "resources.instance_type=g4dn.xlarge")


def test_root_disk_smaller_than_the_vendor_image_is_refused_with_the_size_that_fits(workspace):
    image = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    small = ("--set", f"resources.image={image}", "--set", "resources.disk=50GiB")
    one = ("--set", "resources.instance_type=g4dn.xlarge", "--set", "resources.nodes=1")
    refused = plan(workspace, *one, *small, code=7)
    (error,) = [one for one in refused["findings"] if one["severity"] == "error"]
    assert error["check"] == "root-disk"
    assert error["message"].endswith("needs at least 75 GiB")
    assert plan(workspace, *one, *small, *shlex.split(error["fix"]))["candidates"]
    done = workspace.run("up", "plain", "--yes", *one, *small, code=7)
    assert "root-disk: the disk has 50 GiB" in done.stderr
    assert workspace.left() == {}
