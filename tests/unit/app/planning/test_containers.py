"""`images`: framework containers as text and as JSON."""

import json
from dataclasses import dataclass, replace

import pytest

from cloudgpu.app.planning.catalog_search import ContainerQuery, find_containers
from cloudgpu.catalog import load
from cloudgpu.catalog.compatibility import container_fit
from cloudgpu.catalog.compatibility import software as known_software
from cloudgpu.cli.commands.hardware import container_lines, containers_json
from cloudgpu.cli.main import main
from cloudgpu.errors import UsageError
from cloudgpu.plan.checks.container_and_driver import image_support
from tests.screens import screens


def found(catalog, software, **sought):
    return find_containers(ContainerQuery(**sought), catalog, software)


@pytest.mark.parametrize(
    ("name", "sought"),
    [("all", {}), ("on_t4", {"gpu": "t4"}), ("latest_for_v100", {"latest_for": "V100"})],
)
def test_images_output_matches_golden_file(catalog, software, golden, name, sought):
    assert "\n".join(container_lines(found(catalog, software, **sought))) + "\n" == golden(f"images_{name}.txt")


def test_images_screens_match_golden_file(catalog, software, golden):
    tag = "public.example/nccl-tests:cuda12.8.1-efa1.43.2-ofiv1.16.3-ncclv2.27.7-1-testsv2.16.9-long-enough-to-fill"
    *most, last = software.images
    listing = found(catalog, replace(software, images=(*most, replace(last, image=tag))), gpu="A100")
    assert screens(lambda width: container_lines(listing, width)) == golden("screens_images.txt")


def test_gpu_option_lists_only_compatible_containers(catalog, software):
    assert [container.image.framework for container in found(catalog, software, gpu="A100").containers] == [
        "PyTorch",
        "PyTorch",
        "nccl-tests",
    ]
    assert container_lines(found(catalog, software, gpu="K80")) == ["no known container runs on K80"]


def test_framework_option_ignores_case_and_suggests_names(catalog, software):
    listed = found(catalog, software, framework="pytorch").containers
    assert [container.image.image.rpartition(":")[2] for container in listed] == ["24.12-py3", "25.01-py3"]
    with pytest.raises(
        UsageError, match='--framework pytroch: no known container includes this framework; did you mean "PyTorch"'
    ):
        found(catalog, software, framework="pytroch")


def test_gpu_and_latest_for_are_mutually_exclusive(catalog, software):
    with pytest.raises(UsageError, match="--gpu and --latest-for are mutually exclusive"):
        found(catalog, software, gpu="V100", latest_for="T4")


def test_images_json_has_all_container_fields(catalog, software):
    document = containers_json(found(catalog, software, latest_for="V100"))
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
def test_images_command_works_with_shipped_catalog(capsys):
    assert main(["images", "--latest-for", "V100", "--json"]) == 0
    images = {image["framework"]: image["image"] for image in json.loads(capsys.readouterr().out)["images"]}
    assert images["pytorch"] == "nvcr.io/nvidia/pytorch:24.12-py3"
    assert images["tensorflow1"] == "nvcr.io/nvidia/tensorflow:23.03-tf1-py3"
    assert main(["images", "--gpu", "B200", "--json"]) == 0
    assert "nvcr.io/nvidia/pytorch:24.12-py3" not in capsys.readouterr().out
    assert main(["images"]) == 0
    assert "None" not in capsys.readouterr().out


def test_images_list_agrees_with_plan_on_every_container_and_gpu():
    known = known_software()

    @dataclass(frozen=True)
    class GpuQuery:
        """The inputs of the plan rule."""

        software = known
        catalog = load()

    for image in known.images:
        for gpu in load().gpus.values():
            assert container_fit(image, gpu).fit == (image_support(image.image, gpu, GpuQuery()).fit or "unknown"), (
                image.image,
                gpu,
            )
