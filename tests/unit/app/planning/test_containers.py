"""`images`: framework containers, as text and as a document."""

import json
from dataclasses import dataclass

import pytest

from cloudgpu.app.planning.image_search import ImageQuery, containers
from cloudgpu.catalog import load
from cloudgpu.catalog.compatibility import container_fit
from cloudgpu.catalog.software import software as known_software
from cloudgpu.cli.main import main
from cloudgpu.cli.render.images import image_rows_json, images_lines
from cloudgpu.errors import UsageError
from cloudgpu.plan.checks.software_container import image_support


def found(catalog, software, **sought):
    return containers(ImageQuery(**sought), catalog, software)


@pytest.mark.parametrize(
    ("name", "sought"),
    [("all", {}), ("on_t4", {"gpu": "t4"}), ("latest_for_v100", {"latest_for": "V100"})],
)
def test_the_whole_screen(catalog, software, golden, name, sought):
    assert "\n".join(images_lines(found(catalog, software, **sought))) + "\n" == golden(f"images_{name}.txt")


def test_only_what_runs_on_a_gpu_is_listed(catalog, software):
    assert [one.image.framework for one in found(catalog, software, gpu="A100").containers] == [
        "PyTorch",
        "PyTorch",
        "nccl-tests",
    ]
    assert images_lines(found(catalog, software, gpu="K80")) == ["no known container runs on K80"]


def test_a_framework_in_any_case(catalog, software):
    listed = found(catalog, software, framework="pytorch").containers
    assert [one.image.image.rpartition(":")[2] for one in listed] == ["24.12-py3", "25.01-py3"]
    with pytest.raises(
        UsageError, match='--framework pytroch: no known container includes this framework; did you mean "PyTorch"'
    ):
        found(catalog, software, framework="pytroch")


def test_two_gpus_are_one_too_many(catalog, software):
    with pytest.raises(UsageError, match="--gpu and --latest-for are mutually exclusive"):
        found(catalog, software, gpu="V100", latest_for="T4")


def test_the_document(catalog, software):
    document = image_rows_json(found(catalog, software, latest_for="V100"))
    assert (document["gpu"], document["latest"]) == ("V100", True)
    assert document["images"][1] == {
        "framework": "Caffe2",
        "image": "nvcr.io/nvidia/caffe2:18.08-py3",
        "native_gpus": ["V100"],
        "lowest": "5.2",
        "highest": "7.0",
        "month": "18.08",
        "cuda": "9.0.176",
        "driver": 384,
        "other_drivers": [],
        "last_for": ["Volta"],
        "fit": "native",
        "why": "",
        "recalled": True,
        "source": "where caffe2:18.08-py3 is",
    }


@pytest.mark.usefixtures("home")
def test_the_command_over_the_real_catalogue(capsys):
    assert main(["images", "--latest-for", "V100", "--json"]) == 0
    images = {one["framework"]: one["image"] for one in json.loads(capsys.readouterr().out)["images"]}
    assert images["pytorch"] == "nvcr.io/nvidia/pytorch:24.12-py3"
    assert images["tensorflow1"] == "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"
    assert main(["images", "--gpu", "B200", "--json"]) == 0
    assert "nvcr.io/nvidia/pytorch:24.12-py3" not in capsys.readouterr().out
    assert main(["images"]) == 0
    assert "None" not in capsys.readouterr().out


def test_the_list_and_the_plan_say_the_same_of_every_container_on_every_gpu():
    known = known_software()

    @dataclass(frozen=True)
    class GpuQuery:
        """What the plan's rule looks at."""

        software = known
        catalog = load()

    for image in known.images:
        for gpu in load().gpus.values():
            assert container_fit(image, gpu).fit == (image_support(image.image, gpu, GpuQuery()).fit or "unknown"), (
                image.image,
                gpu,
            )
