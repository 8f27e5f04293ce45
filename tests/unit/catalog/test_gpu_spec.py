"""Match GPU specs from recipes to instance types, and explain specs that match nothing."""

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.catalog.gpu_spec import (
    GpuSpec,
    SpecMismatch,
    find_spec_mismatch,
    format_gpu_spec,
    parse_gpu_spec,
    types_for_spec,
)

CATALOG = load()


def names(spec: str) -> list[str]:
    return [kind.name for kind in types_for_spec(spec, CATALOG)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("p3dn.24xlarge", ["p3dn.24xlarge"]),
        ("V100:8", ["p3dn.24xlarge"]),
        ("V100-32GB:8", ["p3dn.24xlarge"]),
        ("V100-32GiB:8", ["p3dn.24xlarge"]),
        ("V100-16GB:8", ["p3.16xlarge"]),
        ("A100:8", ["p4d.24xlarge", "p4de.24xlarge"]),
        ("A100-40GB:8", ["p4d.24xlarge"]),
        ("A100-80GB:8", ["p4de.24xlarge"]),
        ("H200:8", ["p5en.48xlarge", "p5e.48xlarge"]),
        ("H200-141GB:8", ["p5en.48xlarge", "p5e.48xlarge"]),
        ("A10G-24GB:4", ["g5.12xlarge", "g5.24xlarge"]),
        ("A10G-22GB:4", ["g5.12xlarge", "g5.24xlarge"]),
        ("B300-288GB:8", ["p6-b300.48xlarge"]),
        ("RTX-PRO-Server-6000:8", ["g7e.48xlarge"]),
        ("RTX-PRO-Server-6000-96GB:8", ["g7e.48xlarge"]),
        ("K80:16", ["p2.16xlarge"]),
        ("M40:1", []),
        ("V100-32GB:4", []),
        ("A100-60GB:8", []),
        ("ecs.gn6v-c8g1.16xlarge", []),
        ("dgx-1-32gb", []),
        ("V100", []),
        ("V100:²", []),
    ],
)
def test_gpu_spec_matches_expected_types(spec: str, expected: list[str]):
    assert names(spec) == expected
    assert (find_spec_mismatch(spec, CATALOG) is None) == bool(expected)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            "A100-60GB:8",
            SpecMismatch(
                "gpu",
                "A100 does not come with 60 GB of memory; available sizes: 40 GB, 80 GB",
                "--set resources.gpu=A100-80GB:8",
            ),
        ),
        (
            "A100-90GB:8",
            SpecMismatch(
                "gpu",
                "A100 does not come with 90 GB of memory; available sizes: 40 GB, 80 GB",
                "--set resources.gpu=A100-80GB:8",
            ),
        ),
        (
            "V100-32GB:4",
            SpecMismatch(
                "gpu",
                "no instance type has 4 V100 with 32 GB; available: V100-32GB:8",
                "--set resources.gpu=V100-32GB:8",
            ),
        ),
        (
            "T4:3",
            SpecMismatch("gpu", "no instance type has 3 T4; available: T4:1, T4:4, T4:8", "--set resources.gpu=T4:8"),
        ),
        ("M40:1", SpecMismatch("gpu", "no instance type has 1 M40; available: none")),
        ("V10:8", SpecMismatch("gpu", 'unknown GPU V10; did you mean "V100"?', "--set resources.gpu=V100:8")),
        (
            "V10-32GB:8",
            SpecMismatch("gpu", 'unknown GPU V10-32GB; did you mean "V100"?', "--set resources.gpu=V100-32GB:8"),
        ),
        (
            "p3dn.24xlage",
            SpecMismatch(
                "instance-type",
                'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"?',
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
        (
            "ecs.gn6v-c8g1.16xlarge",
            SpecMismatch(
                "instance-type",
                "ecs.gn6v-c8g1.16xlarge is an Alibaba Cloud instance type, which AWS cannot launch",
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
        (
            "dgx-2",
            SpecMismatch("instance-type", "dgx-2 is a self-managed machine, which AWS cannot launch"),
        ),
    ],
)
def test_unmatched_spec_explains_mismatch_and_fix(spec: str, expected: SpecMismatch):
    assert find_spec_mismatch(spec, CATALOG) == expected


def test_unknown_gpu_without_near_match_lists_known_gpus():
    found = find_spec_mismatch("zzz:1", CATALOG)
    assert found is not None
    assert found.message == "unknown GPU zzz"
    assert found.fix.startswith("known GPUs: K80, M40,")
    assert "RTX-PRO-Server-6000" in found.fix


@given(st.text(max_size=24))
def test_any_text_is_valid_spec_or_mismatch(spec: str):
    assert (find_spec_mismatch(spec, CATALOG) is None) == bool(types_for_spec(spec, CATALOG))
    assert all(kind.provider == "aws" for kind in types_for_spec(spec, CATALOG))


def test_every_suggested_fix_matches_available_type():
    specs = [f"{model}{size}:{count}" for model in _models() for size in ("", "-16GB", "-60GB") for count in range(17)]
    specs += [kind.name for kind in CATALOG.types.values()]
    told = [
        found.fix for found in (find_spec_mismatch(spec, CATALOG) for spec in specs) if found is not None and found.fix
    ]
    assert len(set(told)) > 20
    for fix in set(told):
        match = re.fullmatch(r"--set resources\.(?:gpu|instance_type)=(\S+)", fix)
        assert match, fix
        meant = types_for_spec(match[1], CATALOG)
        assert meant
        assert not any(kind.retired for kind in meant), fix


def test_formatted_spec_of_every_type_matches_that_type():
    for kind in CATALOG.rentable:
        spec = format_gpu_spec(CATALOG.gpus[kind.gpu], kind.gpus, kind.gpu_memory_gib)
        assert re.fullmatch(r"[A-Za-z0-9-]+:[1-9][0-9]?", spec), "as recipes allow it"
        meant = types_for_spec(spec, CATALOG)
        assert {one.gpu_memory_gib for one in meant} == {kind.gpu_memory_gib}
        assert kind.retired or kind in meant


def test_gpu_spec_is_parsed_and_formatted():
    assert parse_gpu_spec("A100-80GB:8") == GpuSpec("A100", 80, 8)
    assert parse_gpu_spec("A100:8") == GpuSpec("A100", None, 8)
    assert parse_gpu_spec("A100-80GB") == GpuSpec("A100", 80)
    assert parse_gpu_spec("") == GpuSpec("")
    assert format_gpu_spec(CATALOG.gpus["V100"], 8, Decimal(32)) == "V100-32GB:8"
    assert format_gpu_spec(CATALOG.gpus["V100"], 8) == "V100:8"
    assert format_gpu_spec(CATALOG.gpus["T4"], 1, Decimal(16)) == "T4:1"
    assert format_gpu_spec(CATALOG.gpus["RTX PRO Server 6000"], 2, Decimal(96)) == "RTX-PRO-Server-6000:2"


def _models() -> list[str]:
    return [format_gpu_spec(gpu, 1).partition(":")[0] for gpu in CATALOG.gpus.values()]
