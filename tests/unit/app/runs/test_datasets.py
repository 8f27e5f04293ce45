"""Local datasets are checked against their manifest before any launch."""

import hashlib

import pytest

from cloudgpu.app.runs.datasets import check_checkpoint, dataset_lister, put_rehearsal_objects
from cloudgpu.errors import BadRequestError, RecipeError
from cloudgpu.recipe.schema import Data
from cloudgpu.run.dataset_copies import RemoteFile


def dataset(**more):
    return Data.model_validate({"name": "digits", "from": "data", "to": "/data/digits", **more})


@pytest.fixture
def base(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1")
    (tmp_path / "data" / "b.csv").write_text("22")
    return tmp_path


def manifest(base, **sums):
    text = "".join(f"{hashlib.sha256(content.encode()).hexdigest()}  {name}.csv\n" for name, content in sums.items())
    (base / "SHA256SUMS").write_text(text)
    return dataset(manifest="SHA256SUMS")


class Bucket:
    """A cloud whose bucket has one object that can be read, and one that must be restored first."""

    def objects(self, url, *, expires_s):
        return [RemoteFile("u", "a.csv", 1, None), RemoteFile("u", "b.csv", 2, None, "", "GLACIER")]


def test_archived_object_stops_a_run_before_the_launch(base):
    with pytest.raises(BadRequestError) as caught:
        dataset_lister(Bucket(), base)(dataset(**{"from": "s3://sets/digits"}))
    assert caught.value.message == (
        "dataset digits: 1 object under s3://sets/digits cannot be read until restored, such as b.csv (GLACIER)"
    )
    assert "aws s3api restore-object" in caught.value.hint


def test_archived_object_outside_manifest_is_not_needed(base):
    manifest(base, a="1")
    files = dataset_lister(Bucket(), base)(dataset(**{"from": "s3://sets/digits", "manifest": "SHA256SUMS"}))
    assert [file.relative for file in files] == ["a.csv"]


def test_local_directory_is_listed_with_file_sizes(base):
    files = dataset_lister(None, base)(dataset())
    assert [(file.relative, file.size) for file in files] == [("a.csv", 1), ("b.csv", 2)]


def test_single_local_file_is_a_dataset(base):
    files = dataset_lister(None, base)(dataset(**{"from": "data/b.csv"}))
    assert [(file.relative, file.size) for file in files] == [("b.csv", 2)]


def test_only_files_in_the_manifest_are_staged(base):
    files = dataset_lister(None, base)(manifest(base, a="1"))
    assert [file.relative for file in files] == ["a.csv"]
    assert files[0].sha256


@pytest.mark.parametrize(
    ("sums", "why"), [({"a": "changed"}, "has sha256"), ({"a": "1", "z": "1"}, "lists z.csv, which does not exist")]
)
def test_file_that_contradicts_the_manifest_is_rejected(base, sums, why):
    with pytest.raises(RecipeError, match=why):
        dataset_lister(None, base)(manifest(base, **sums))


def test_nonexistent_dataset_directory_is_a_recipe_error(base):
    with pytest.raises(RecipeError, match=r"dataset digits: .*nowhere"):
        dataset_lister(None, base)(dataset(**{"from": "nowhere"}))


def test_rehearsal_objects_must_be_directories(base, workspace, make):
    objects = {"objects": {"s3://bucket/digits": "data/a.csv"}}
    recipe = make.plan(make.candidate(), rehearsal=objects).recipe
    with pytest.raises(RecipeError, match=r"a\.csv is not a directory"):
        put_rehearsal_objects(recipe, base, workspace.cloud)


class Buckets:
    """A cloud with one empty bucket."""

    def __init__(self) -> None:
        self.queried: list[str] = []

    def objects(self, url: str, *, expires_s: int):
        del expires_s
        self.queried.append(url)
        raise BadRequestError("not there", code="NoSuchKey" if url.startswith("s3://there/") else "NoSuchBucket")


def checkpoint_to(to):
    return {"checkpoint": {"path": "c", "to": to}}


def outputs_to(to):
    return {"outputs": ["o"], "outputs_to": to}


@pytest.mark.parametrize("sections", [checkpoint_to, outputs_to])
def test_output_bucket_must_exist_but_may_be_empty(base, make, sections):
    def recipe(to):
        return make.plan(make.candidate(), **sections(to)).recipe

    cloud = Buckets()
    check_checkpoint(recipe("s3://there/of/{run}"), cloud, dataset_lister(cloud, base))
    assert cloud.queried == ["s3://there/of/"]
    with pytest.raises(BadRequestError):
        check_checkpoint(recipe("s3://nobodys/of/{run}"), cloud, dataset_lister(cloud, base))


def test_local_dataset_with_unsendable_file_is_rejected(workspace, base, make):
    """Training on part of the data would appear to succeed."""
    folder = base / "data"
    folder.mkdir(exist_ok=True)
    (folder / "part-0").write_text("0")
    (folder / "part-1").symlink_to("/etc/hostname")
    recipe = make.plan(make.candidate(), data=[{"name": "set", "from": "data", "to": "/data"}]).recipe
    with pytest.raises(RecipeError, match=r"1 file in .* cannot be uploaded; first: part-1: symlink that") as caught:
        dataset_lister(workspace.cloud, base)(recipe.data[0])
    assert ".cloudgpuignore" in caught.value.hint
    (folder / "part-1").unlink()
    (folder / "part-1").symlink_to(folder / "part-0")
    assert {"part-0", "part-1"} <= {file.relative for file in dataset_lister(workspace.cloud, base)(recipe.data[0])}
