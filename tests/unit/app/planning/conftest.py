"""A small handwritten catalog, so that price changes do not affect tests of rules and output."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.catalog import Catalog, Gpu, InstanceType
from cloudgpu.catalog.compatibility import FrameworkImage, NgcMonth, Software, TorchWheels
from cloudgpu.catalog.hardware import Memory, PeakRates

EC2_GIB = {"24": "22.35", "180": "179"}
READ_ON = date(2026, 7, 20)
ARCHITECTURES = {"37": "Kepler", "70": "Volta", "75": "Turing", "80": "Ampere", "90": "Hopper", "100": "Blackwell"}


def gpu(name: str, capability: str, memories: Mapping[str, int], fp16: str | None = None, **more: Any) -> Gpu:
    """Return a GPU. `memories` maps GB as sold to GB/s; `fp16` is in TFLOP/s."""
    fields = {
        "architecture": ARCHITECTURES[capability.replace(".", "")],
        "last_driver": None,
        "last_cuda_major": None,
        "first_ngc": None,
        "last_ngc": None,
        "first_torch_without": None,
        "last_torch": None,
        "image": "/aws/some/parameter",
        "rates": PeakRates(fp16=None if fp16 is None else Decimal(fp16)),
        **more,
    }
    sizes = tuple(Memory(Decimal(EC2_GIB.get(gb, gb)), speed, int(gb)) for gb, speed in memories.items())
    return Gpu(name=name, compute_capability=capability, memories=sizes, **fields)


def kind(name: str, spec: str, gib: str, usd: Mapping[str, str], **more: Any) -> InstanceType:
    """Return an instance type with GPUs such as `V100:8`, offered in its priced regions and those of `also_in`."""
    model, _, count = spec.partition(":")
    regions = (*usd, *more.pop("also_in", ()))
    spot = {region: (Decimal(low), Decimal(high)) for region, (low, high) in more.pop("spot", {}).items()}
    retired = more.get("lifecycle") == "retired"
    fields = {
        "vcpus": 8,
        "memory_gib": 64,
        "efa_interfaces": 0,
        "network_cards": 1,
        "gpudirect_rdma": False,
        "lifecycle": "active",
        "retired_on": date(2025, 12, 20) if retired else None,
        "replacement": None,
        "priced_on": READ_ON,
        "source": "made by hand",
        "zones": {} if retired else {region: (f"{region}a",) for region in regions},
        **more,
    }
    prices = {region: Decimal(price) for region, price in usd.items()}
    return InstanceType(
        name=name,
        gpu=model,
        gpus=int(count),
        gpu_memory_gib=Decimal(gib),
        on_demand_usd=prices,
        spot_usd=spot,
        **fields,
    )


GPUS = (
    gpu("K80", "3.7", {"12": 240}, last_driver=470, last_cuda_major=11, first_driver=340, replacement="V100"),
    gpu(
        "V100",
        "7.0",
        {"16": 900, "32": 900},
        "125",
        first_driver=384,
        last_driver=580,
        modules=("proprietary",),
        first_cuda="9.0",
        last_cuda_major=12,
        last_cudnn="9.10",
        first_ngc="17.09",
        last_ngc="24.12",
        first_torch_without="2.11",
        last_torch="2.14",
        nvlink_links=6,
        nccl_link_gb_s=Decimal(20),
        pcie="3.0 x16",
        tdp_w=300,
        ecc=True,
        rates=PeakRates(fp32=Decimal("15.7"), fp16=Decimal(125)),
        sources={"rates": "the data sheet of 2018 (recalled)", "last_driver": "the driver matrix"},
    ),
    gpu("T4", "7.5", {"16": 320}, "65", first_ngc="18.09", first_driver=410, nvlink_links=0),
    gpu("A10G", "8.0", {"24": 600}, "70", first_ngc="20.10"),
    gpu("A100", "8.0", {"40": 1555, "80": 2039}, "312", first_ngc="20.06"),
    gpu("H200", "9.0", {"141": 4800}, "989"),
    gpu("B200", "10.0", {"180": 8000}, None, first_ngc="25.01"),
)
TYPES = (
    kind("p2.8xlarge", "K80:8", "12", {"us-east-1": "7.2"}, lifecycle="retired", replacement="g4.metal"),
    kind("p3.16xlarge", "V100:8", "16", {"us-east-1": "24.48"}, lifecycle="retired", replacement="p3dn.24xlarge"),
    kind(
        "p3dn.24xlarge",
        "V100:8",
        "32",
        {"eu-west-1": "33.711", "us-east-1": "31.212", "us-west-2": "31.212"},
        lifecycle="previous",
        spot={"us-east-1": ("6.26", "8.29")},
    ),
    kind("g4.xlarge", "T4:1", "16", {"us-east-1": "0.526", "eu-west-1": "0.587"}, spot={"eu-west-1": ("0.2", "0.3")}),
    kind("g4.metal", "T4:8", "16", {"us-east-1": "7.824"}),
    kind("g5.48xlarge", "A10G:8", "22.35", {"us-east-1": "16.288"}),
    kind("p4d.24xlarge", "A100:8", "40", {"us-east-1": "21.957642"}, spot={"us-east-1": ("2.47", "21.957642")}),
    kind("p4de.24xlarge", "A100:8", "80", {"us-east-1": "27.44705"}, usage_classes=("on-demand",)),
    kind(
        "p5e.48xlarge",
        "H200:8",
        "141",
        {},
        also_in=("us-east-2",),
        usage_classes=("spot", "capacity-block"),
        capacity_block_usd={"us-east-2": Decimal("39.799")},
    ),
    kind("p6.48xlarge", "B200:8", "179", {"us-west-2": "113.9328"}),
    kind("dgx-1", "V100:8", "16", {}, provider="own"),
)
CATALOG = Catalog(
    {gpu.name: gpu for gpu in GPUS},
    {kind.name: kind for kind in TYPES},
    ("eu-west-1", "us-east-1", "us-east-2", "us-west-2"),
)

NGC = (
    NgcMonth("18.08", "9.0.176", 384, (), None, "release notes"),
    NgcMonth("24.12", "12.6.3", 560, (470, 535), "6.0", "release notes"),
    NgcMonth("25.01", "12.8.0", 570, (470, 535), "7.5", "release notes"),
)


def image(framework: str, tag: str, lowest: str, highest: str | None, *last_for: str, recalled: bool = False):
    """Return an NVIDIA container image."""
    return FrameworkImage(framework, f"nvcr.io/nvidia/{tag}", lowest, highest, last_for, recalled, f"where {tag} is")


IMAGES = (
    image("PyTorch", "pytorch:24.12-py3", "5.2", None, "Volta"),
    image("PyTorch", "pytorch:25.01-py3", "7.5", None),
    image("Caffe2", "caffe2:18.08-py3", "5.2", "7.0", "Volta", recalled=True),
    FrameworkImage("nccl-tests", "public.example/nccl-tests:cuda12.8", "8.0", None, (), False, "its own page"),
)
WHEELS = (
    TorchWheels("cu126", "2.6", "2.14", ("5.0", "7.0", "8.0"), "2.6", "2.7", "wheel matrix"),
    TorchWheels("cu130", "2.9", None, ("7.5", "8.0", "9.0", "10.0"), "2.11", None, "wheel matrix"),
)
SOFTWARE = Software({month.month: month for month in NGC}, IMAGES, WHEELS, {})


@pytest.fixture
def golden() -> Callable[[str], str]:
    """The text of a golden file."""
    return lambda name: (Path(__file__).parent / "golden" / name).read_text(encoding="utf-8")


@pytest.fixture
def catalog() -> Catalog:
    return CATALOG


@pytest.fixture
def software() -> Software:
    return SOFTWARE
