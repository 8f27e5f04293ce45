"""`gpus show`: the profile of one GPU as text and as JSON."""

import json
from dataclasses import replace
from datetime import date

import pytest

from cloudgpu.catalog import load
from cloudgpu.catalog.compatibility import find_gpu, profile, supports_gpu
from cloudgpu.catalog.compatibility import software as known_software
from cloudgpu.cli.main import main
from cloudgpu.cli.render.gpu_details import format_version_range, profile_json, profile_lines
from cloudgpu.errors import RecipeError
from tests.screens import screens

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize("name", ["V100", "K80", "B200"])
def test_gpu_profile_output_matches_golden_file(catalog, software, golden, name):
    found = profile(catalog, software, name, home_region="us-east-1")
    assert "\n".join(profile_lines(found, TODAY, sources=True)) + "\n" == golden(f"show_{name}.txt")


def test_gpu_profile_screens_match_golden_file(catalog, software, golden):
    found = profile(catalog, software, "V100", home_region="us-east-1")
    assert screens(lambda width: profile_lines(found, TODAY, width)) == golden("screens_show.txt")


@pytest.mark.parametrize("spelling", ["V100", "v100", "V100-32GB", "v100-16gb:8", "V-100"])
def test_gpu_is_found_by_common_spellings(catalog, spelling):
    assert find_gpu(catalog, spelling).name == "V100"


def test_unknown_gpu_name_suggests_the_nearest(catalog):
    with pytest.raises(RecipeError, match='unknown GPU V10; did you mean "V100"'):
        find_gpu(catalog, "V10")


@pytest.mark.parametrize(
    ("name", "gpu", "note"),
    [
        (
            "p3.2xlarge",
            "V100",
            "AWS retired p3.2xlarge on 2025-12-20, and it can no longer be launched; its successor is ",
        ),
        ("p3dn.24xlarge", "V100", "p3dn.24xlarge may not be available to new accounts"),
        ("g6.xlarge", "L4", ""),
        ("V100", "V100", ""),
    ],
)
def test_instance_type_shows_its_gpu_and_whether_it_can_be_launched(name, gpu, note):
    found = profile(load(), known_software(), name, home_region="us-east-1")
    assert (found.gpu.name, bool(found.note)) == (gpu, bool(note))
    assert found.note.startswith(note)
    assert not note or profile_lines(found, TODAY, 300)[1] == found.note
    assert profile_json(found)["note"] == (found.note or None)


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("g6f.xlarge", "g6f.xlarge has a part of an L4", "cloudgpu gpus show g6.xlarge"),
        ("gb200:4", "GB200 is offered only in types with Arm processors", "cloudgpu gpus show B200"),
    ],
)
def test_unsupported_hardware_is_explained(name, message, hint):
    with pytest.raises(RecipeError) as caught:
        find_gpu(load(), name)
    assert (caught.value.message[: len(message)], caught.value.hint) == (message, hint)
    find_gpu(load(), hint.rpartition(" ")[2])


def test_wheel_supports_same_major_and_newer_minor_capability(catalog, software):
    cu126, cu130 = software.torch
    assert supports_gpu(cu126, catalog.gpus["V100"])
    assert not supports_gpu(cu130, catalog.gpus["V100"])
    assert supports_gpu(cu126, catalog.gpus["T4"])
    assert not supports_gpu(cu126, catalog.gpus["B200"])
    assert supports_gpu(cu130, catalog.gpus["B200"])
    assert not supports_gpu(cu130, catalog.gpus["K80"])


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        ("R384", "R580", "R384 to R580"),
        ("R450", None, "R450 and later"),
        (None, "R470", "unknown to R470"),
        (None, None, "unknown and later"),
        ("2.7", "2.7", "2.7"),
    ],
)
def test_version_range_is_formatted(first, last, text):
    assert format_version_range(first, last) == text


@pytest.mark.parametrize(
    ("without", "last", "text"),
    [
        ("2.11", "2.14", "pip's default wheels below 2.11, wheels from other indexes up to 2.14"),
        ("2.9", "2.10", "pip's default wheels below 2.9, wheels from other indexes up to 2.10"),
        ("2.1", "2.0", "pip's default wheels below 2.1"),
        (None, None, "pip's default wheels run on it"),
        (None, "2.3", "up to 2.3"),
    ],
)
def test_profile_shows_which_pytorch_wheels_run_on_gpu(catalog, software, without, last, text):
    gpu = replace(catalog.gpus["V100"], first_torch_without=without, last_torch=last)
    changed = replace(catalog, gpus={**catalog.gpus, "V100": gpu})
    lines = profile_lines(profile(changed, software, "V100", home_region="us-east-1"), TODAY)
    assert f"  PyTorch        {text}" in lines


@pytest.mark.parametrize("name", sorted(load().gpus))
def test_every_catalog_gpu_has_a_complete_profile(name):
    found = profile(load(), known_software(), name, home_region="us-east-1")
    document = profile_json(found)
    assert json.loads(json.dumps(document)) == document
    assert document["gpu"] == name
    text = "\n".join(profile_lines(found, TODAY, sources=True))
    assert "None" not in text
    assert all(len(line) <= 200 for line in text.splitlines())
    assert found.gpu.sources
    for replacement in found.replacements:
        for offer in (replacement.cheapest, replacement.newer):
            assert offer is None or (offer.obtainable and offer.kind.gpu_memory_gib >= replacement.gib)
        assert replacement.newer is None or replacement.newer.gpu.sm > found.gpu.sm


@pytest.mark.usefixtures("home")
def test_gpus_show_command_works_with_shipped_catalog(capsys):
    assert main(["gpus", "show", "v100", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["driver"] == {"first": 384, "last": 580, "modules": ["proprietary"]}
    assert document["ngc"] == {"first": "17.09", "last": "24.12"}
    containers = {row["framework"]: row["image"] for row in document["containers"]}
    assert containers["pytorch"] == "nvcr.io/nvidia/pytorch:24.12-py3"
    assert all(row["source"] for part in ("containers", "wheels", "offers") for row in document[part])
    assert "p3dn.24xlarge" in {row["instance_type"] for row in document["offers"]}
    assert main(["gpus", "show", "V100"]) == 0
    assert "R384 to R580; proprietary kernel modules only" in capsys.readouterr().out
    assert main(["gpus", "show", "X9"]) == 2
    assert "unknown GPU X9" in capsys.readouterr().err
