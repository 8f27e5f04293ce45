"""The `storage` section: invalid settings, and placeholders for use in commands."""

import pytest

from cloudgpu.recipe.loader import validate_recipe
from cloudgpu.recipe.template import placeholders

BASE = {"schema": 1, "name": "r", "resources": {"gpu": "V100:8"}, "launch": {"with": "torchrun", "command": "x.py"}}
HOMES = {"name": "homes", "to": "/team/homes"}


def problems(tmp_path, *storage, **more):
    _, found = validate_recipe({**BASE, **more, "storage": list(storage)}, tmp_path)
    return [problem.text for problem in found]


def test_valid_storage_is_mounted_and_available_as_placeholder(tmp_path):
    scratch = {"name": "scratch", "to": "/scratch", "make": {"kind": "lustre", "size": "2400GiB"}, "keep": False}
    recipe, found = validate_recipe({**BASE, "storage": [HOMES, scratch]}, tmp_path)
    assert found == ()
    assert {"storage.homes", "storage.scratch"} <= set(placeholders(recipe))
    assert (recipe.storage[0].mode, recipe.storage[0].keep, recipe.storage[1].make.size) == ("rw", True, 2400)


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ([{**HOMES, "to": "relative"}], "absolute directory"),
        ([{**HOMES, "to": "/"}], "absolute directory"),
        ([{**HOMES, "to": "/etc/x"}], "the node's operating system"),
        ([{**HOMES, "to": "/home/ubuntu"}], "the node's operating system"),
        ([{**HOMES, "to": "/mnt/cloudgpu/x"}], "the node's local disks"),
        ([HOMES, {"name": "inner", "to": "/team/homes/x"}], "; use separate directories"),
        ([HOMES, {**HOMES, "to": "/other"}], "another entry is already named homes"),
        ([{**HOMES, "to": "/data/cifar"}], "dataset cifar"),
        ([{**HOMES, "keep": False}], "only storage created with the cluster"),
        ([{**HOMES, "make": {"kind": "lustre"}}], "1200GiB or a multiple"),
        ([{**HOMES, "make": {"kind": "lustre", "size": "3600GiB"}}], "1200GiB or a multiple"),
        ([{**HOMES, "make": {"kind": "ebs"}}], "required for ebs"),
        ([{**HOMES, "make": {"kind": "efs", "size": "10GiB"}}], "not supported for efs"),
        ([{**HOMES, "make": {"kind": "ebs", "size": "10GiB", "linked": "s3://bucket/x"}}], "not supported for ebs"),
        ([{"name": f"n{n}", "to": f"/n{n}"} for n in range(5)], "at most 4"),
    ],
)
def test_invalid_storage_is_reported(tmp_path, storage, words):
    data = [{"name": "cifar", "from": "s3://bucket/x/", "to": "/data/cifar/raw"}]
    (told,) = problems(tmp_path, *storage, data=data)
    assert words in told


def test_ebs_storage_is_limited_to_a_single_node(tmp_path):
    disk = {"name": "disk", "to": "/disk", "make": {"kind": "ebs", "size": "10GiB"}}
    assert problems(tmp_path, disk) == []
    (told,) = problems(tmp_path, disk, resources={"gpu": "V100:8", "nodes": 2})
    assert "ebs works with one node" in told
