"""S3 access that a recipe grants to its nodes."""

from types import SimpleNamespace

from cloudgpu.engine.role_grants import role_grant_settings


def recipe(*sources: str, to: str | None = None, image: str = "", outputs_to: str | None = None):
    container = SimpleNamespace(image=image) if image else None
    return SimpleNamespace(
        data=[SimpleNamespace(source=source, endpoint=None, writable=False) for source in sources],
        checkpoint=SimpleNamespace(to=to),
        outputs_to=outputs_to,
        environment=SimpleNamespace(container=container),
    )


def test_s3_data_is_readable_and_local_data_needs_no_grant():
    found = role_grant_settings(recipe("s3://data/imagenet/", "./local", "s3://data/imagenet/", "s3://other/one.tar"))
    assert found == {"readable": "data/imagenet/,other/one.tar", "writable": ""}


def test_checkpoint_prefix_before_placeholder_is_writable():
    assert role_grant_settings(recipe(to="s3://bucket/runs/{run}/x"))["writable"] == "bucket/runs/"
    assert role_grant_settings(recipe(to=None))["writable"] == ""


def test_outputs_prefix_is_writable():
    assert role_grant_settings(recipe(outputs_to="s3://bucket/results/{run}"))["writable"] == "bucket/results/"
    both = recipe(to="s3://bucket/runs/{run}", outputs_to="s3://other/results")
    assert role_grant_settings(both)["writable"] == "bucket/runs/,other/results"


def test_container_image_needs_no_grant():
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/train:1.0"
    assert role_grant_settings(recipe(image=image)) == role_grant_settings(recipe())


def test_writable_mount_is_granted_only_on_aws():
    wanted = recipe("s3://bucket/a", "s3://bucket/b", "s3://bucket/c", to="s3://kept/runs/{run}")
    wanted.data[0].writable = wanted.data[2].writable = True
    wanted.data[2].endpoint = "https://elsewhere"
    found = role_grant_settings(wanted)
    assert (found["readable"], found["writable"]) == ("bucket/a,bucket/b", "kept/runs/,bucket/a")
