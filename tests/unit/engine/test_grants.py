"""S3 access that a recipe grants to its nodes."""

import json
from types import SimpleNamespace

import pytest

from cloudgpu.engine.config import RoleGrants, role_grants
from cloudgpu.errors import RecipeError


def recipe(*sources: str, to: str | None = None, image: str = "", outputs_to: str | None = None):
    container = SimpleNamespace(image=image) if image else None
    return SimpleNamespace(
        data=[SimpleNamespace(source=source, endpoint=None, writable=False) for source in sources],
        checkpoint=SimpleNamespace(to=to),
        outputs_to=outputs_to,
        environment=SimpleNamespace(container=container),
    )


def test_s3_data_is_readable_and_local_data_needs_no_grant():
    found = role_grants(recipe("s3://data/imagenet/", "./local", "s3://data/imagenet", "S3://other/one.tar"))
    assert found.config == {"readable": '["data/imagenet", "other/one.tar"]', "writable": ""}


def test_checkpoint_of_a_known_run_is_writable_only_for_this_run():
    wanted = recipe(to="s3://bucket/runs/{run}/x", outputs_to="s3://other/{run}")
    assert role_grants(wanted, "demo-k3fz8w").writable == ("bucket/runs/demo-k3fz8w/x", "other/demo-k3fz8w")
    assert role_grants(recipe(to=None)).writable == ()


def test_location_of_any_run_is_the_parts_around_the_run():
    wanted = recipe(to="s3://bucket/runs/{run}/x", outputs_to="s3://other/results")
    assert json.loads(role_grants(wanted).config["writable"]) == [["bucket/runs/", "/x"], "other/results"]
    assert role_grants(recipe(to="s3://bucket/{run}/")).writable == (("bucket/", ""),)


@pytest.mark.parametrize("url", ["s3://bucket/run,x", "s3://bucket/a,b-2/c", "s3://bucket/[1,2]"])
def test_comma_does_not_separate_locations(url: str):
    assert json.loads(role_grants(recipe(url)).config["readable"]) == [url.removeprefix("s3://")]


@pytest.mark.parametrize("url", ["s3://bucket/run,*", "s3://*/x", "s3://bucket,*/x", "s3://bucket/?"])
def test_url_that_no_recipe_may_contain_is_refused_again(url: str):
    with pytest.raises(RecipeError, match="not"):
        role_grants(recipe(url))
    with pytest.raises(RecipeError, match="not"):
        role_grants(recipe(to=url), "demo-k3fz8w")


@pytest.mark.parametrize("url", ["https://bucket/x", "results/", "nfs://bucket/x"])
def test_upload_to_another_kind_of_place_is_refused(url: str):
    with pytest.raises(RecipeError, match="expected an S3 URL"):
        role_grants(recipe(outputs_to=url))


@pytest.mark.parametrize("run_id", ["", "demo-k3fz8w"])
def test_run_is_never_part_of_the_bucket(run_id: str):
    with pytest.raises(RecipeError, match="not a valid bucket name"):
        role_grants(recipe(to="s3://bucket-{run}/x"), run_id)


def test_container_image_needs_no_grant():
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train:1.0"
    assert role_grants(recipe(image=image)) == role_grants(recipe())


def test_writable_mount_is_granted_only_on_aws():
    wanted = recipe("s3://bucket/a", "s3://bucket/b", "s3://bucket/c", to="s3://kept/runs/{run}")
    wanted.data[0].writable = wanted.data[2].writable = True
    wanted.data[2].endpoint = "https://elsewhere"
    found = role_grants(wanted)
    assert (found.readable, found.writable) == (("bucket/a", "bucket/b"), (("kept/runs/", ""), "bucket/a"))


@pytest.mark.parametrize(
    ("recorded", "url", "covered"),
    [
        ('["bucket/runs"]', "s3://bucket/runs/{run}", True),
        ('["bucket/runs"]', "s3://bucket/runs2/{run}", False),
        ('["bucket"]', "s3://bucket/x", True),
        ('["bucket/runs/r-1"]', "s3://bucket/runs/{run}", False),
        ('[["bucket/runs/", ""]]', "s3://bucket/runs/{run}", True),
        ('[["bucket/runs/", ""]]', "s3://bucket/runs", False),
        ("bucket/runs/", "s3://bucket/runs/{run}", True),
        ("bucket/runs/,other", "s3://other/{run}", True),
        ("bucket/run-", "s3://bucket/run-{run}", False),
        ("", "s3://bucket", False),
    ],
)
def test_grants_of_a_cluster_cover_another_run(recorded: str, url: str, covered: bool):
    here, needed = RoleGrants.from_config({"writable": recorded}), role_grants(recipe(to=url))
    assert here.covers(needed) is covered
    both = here.union(needed)
    assert both.covers(needed)
    assert both.union(needed) == both == RoleGrants.from_config(both.config)
