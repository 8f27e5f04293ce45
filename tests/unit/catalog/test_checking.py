"""The catalog passes all consistency rules, and each rule detects data broken for it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from catalogue_check import RULES, problems
from catalogue_hardware_checks import CatalogData, load_bundled_data

from cloudgpu.catalog.catalog import TYPE_FILES, read_data_file
from cloudgpu.catalog.hardware import Memory

KNOWN = load_bundled_data()


def type_with(name: str, **changes: Any) -> CatalogData:
    types = {**KNOWN.catalog.types, name: replace(KNOWN.catalog.types[name], **changes)}
    return replace(KNOWN, catalog=replace(KNOWN.catalog, types=types))


def gpu_with(name: str, **changes: Any) -> CatalogData:
    gpus = {**KNOWN.catalog.gpus, name: replace(KNOWN.catalog.gpus[name], **changes)}
    return replace(KNOWN, catalog=replace(KNOWN.catalog, gpus=gpus))


def month_with(name: str, **changes: Any) -> CatalogData:
    ngc = {**KNOWN.software.ngc, name: replace(KNOWN.software.ngc[name], **changes)}
    return replace(KNOWN, software=replace(KNOWN.software, ngc=ngc))


def image_with(tag: str, **changes: Any) -> CatalogData:
    images = [replace(one, **changes) if one.image.endswith(tag) else one for one in KNOWN.software.images]
    assert images != list(KNOWN.software.images)
    return replace(KNOWN, software=replace(KNOWN.software, images=tuple(images)))


def wheels_with(cuda: str, first: str, **changes: Any) -> CatalogData:
    rows = [replace(one, **changes) if (one.cuda, one.first) == (cuda, first) else one for one in KNOWN.software.torch]
    assert rows != list(KNOWN.software.torch)
    return replace(KNOWN, software=replace(KNOWN.software, torch=tuple(rows)))


def minimum_with(name: str, **changes: Any) -> CatalogData:
    fabric = {**KNOWN.software.fabric, name: replace(KNOWN.software.fabric[name], **changes)}
    return replace(KNOWN, software=replace(KNOWN.software, fabric=fabric))


def without(mapping: Any, key: str) -> dict[str, str]:
    return {name: told for name, told in mapping.items() if name != key}


P3DN, V100 = KNOWN.catalog.types["p3dn.24xlarge"], KNOWN.catalog.gpus["V100"]
BROKEN: list[tuple[str, Callable[[], CatalogData], str]] = [
    ("check_versions", lambda: gpu_with("V100", first_cuda="nine"), "V100: 'nine' is not a version"),
    ("check_versions", lambda: wheels_with("cu126", "2.6", last="2.x"), "cu126: '2.x' is not a version"),
    ("check_versions", lambda: minimum_with("p5.48xlarge", nccl="new"), "p5.48xlarge: 'new' is not a version"),
    ("check_hardware", lambda: type_with("p3dn.24xlarge", gpu="V101"), "its GPU V101 is not in the catalog"),
    ("check_hardware", lambda: type_with("p3dn.24xlarge", gpu_memory_gib=Decimal(31)), "V100 does not come with 31"),
    (
        "check_hardware",
        lambda: type_with("p3dn.24xlarge", efa_interfaces=2),
        "more EFA interfaces (2) than network cards (1)",
    ),
    ("check_hardware", lambda: type_with("g4dn.metal", nvlink=True), "but T4 has no NVLink links"),
    ("check_hardware", lambda: type_with("g4dn.metal", gpus=0), "it has no GPUs, processors or memory"),
    ("check_retirement", lambda: type_with("p3.2xlarge", retired_on=None), "it is retired but has no retirement date"),
    ("check_retirement", lambda: type_with("p3.2xlarge", replacement=None), "its replacement None is not available"),
    (
        "check_retirement",
        lambda: type_with("p3.2xlarge", replacement="p2.xlarge"),
        "its replacement p2.xlarge is not available",
    ),
    (
        "check_retirement",
        lambda: type_with("p3.2xlarge", replacement="dgx-2"),
        "its replacement dgx-2 is not available",
    ),
    ("check_retirement", lambda: type_with("p3.2xlarge", zones=P3DN.zones), "it is retired but still offered"),
    ("check_retirement", lambda: type_with("g4dn.metal", zones={}), "it is not retired but is not offered in any zone"),
    ("check_retirement", lambda: type_with("g4dn.metal", retired_on=date(2026, 1, 1)), "it has a retirement date"),
    ("check_offers", lambda: type_with("g4dn.metal", on_demand_usd={"us-eest-1": Decimal(1)}), "region us-eest-1"),
    ("check_offers", lambda: type_with("g4dn.metal", zones={"us-east-1": ("us-east-2a",)}), "zones in us-east-1 are"),
    (
        "check_offers",
        lambda: type_with("g4dn.metal", zones={"us-east-1": ()}),
        "its zones in us-east-1 are invalid: none",
    ),
    ("check_offers", lambda: type_with("dgx-2", zones=P3DN.zones), "its provider is own, but it has AWS offers"),
    ("check_prices", lambda: type_with("g4dn.metal", on_demand_usd={"us-east-1": Decimal(0)}), "0 USD per hour"),
    (
        "check_prices",
        lambda: type_with("p3dn.24xlarge", capacity_block_usd={"us-east-1": Decimal(9)}),
        "it has Capacity Block prices, but EC2 does not offer it in Capacity Blocks",
    ),
    (
        "check_prices",
        lambda: type_with("p3dn.24xlarge", spot_usd={"us-east-1": (Decimal(6), Decimal(32))}),
        "its spot prices in us-east-1 are invalid: 6 to 32 USD per hour",
    ),
    (
        "check_prices",
        lambda: type_with("p3dn.24xlarge", spot_usd={"us-east-1": (Decimal(7), Decimal(6))}),
        "are invalid: 7 to 6 USD",
    ),
    (
        "check_unsupported",
        lambda: type_with("g6.xlarge", lifecycle="retired"),
        "g6f.: its replacement g6.xlarge is not available",
    ),
    (
        "check_type_sources",
        lambda: type_with("p3dn.24xlarge", sources=without(P3DN.sources, "hardware")),
        "its hardware has no source",
    ),
    (
        "check_type_sources",
        lambda: type_with("p3dn.24xlarge", sources=without(P3DN.sources, "spot_usd")),
        "its spot_usd has no source",
    ),
    ("check_type_sources", lambda: type_with("p3dn.24xlarge", source=""), "its prices have no source"),
    (
        "check_version_ranges",
        lambda: gpu_with("V100", last_driver=340),
        "first driver R384 is newer than its last driver R340",
    ),
    (
        "check_version_ranges",
        lambda: gpu_with("V100", last_cuda_major=8),
        "first CUDA version 9.0 is newer than its last, 8",
    ),
    (
        "check_version_ranges",
        lambda: gpu_with("V100", last_ngc="17.01"),
        "first NGC release 17.09 is newer than its last, 17.01",
    ),
    ("check_version_ranges", lambda: gpu_with("V100", first_ngc=None), "end with 24.12 but have no first release"),
    ("check_gpus", lambda: gpu_with("V100", memories=()), "its memory sizes are invalid: none"),
    (
        "check_gpus",
        lambda: gpu_with("T4", memories=(Memory(Decimal(16), 300, 16), Memory(Decimal(8), 300, 8))),
        "its memory sizes are invalid: 16, 8",
    ),
    ("check_gpus", lambda: gpu_with("V100", modules=("open",)), "its kernel modules are invalid: open"),
    ("check_gpus", lambda: gpu_with("V100", nvlink_links=0), "an NVLink rate but no NVLink links"),
    ("check_gpus", lambda: gpu_with("K80", replacement="M60"), "AWS does not offer its replacement M60"),
    ("check_bootstrap_drivers", lambda: gpu_with("V100", last_driver=570), "driver R580 is outside its driver range"),
    ("check_bootstrap_drivers", lambda: gpu_with("B200", first_driver=590), "driver R580 is outside its driver range"),
    ("check_bootstrap_drivers", lambda: gpu_with("V100", architecture="Blackwell"), "installs open modules"),
    ("check_bootstrap_drivers", lambda: gpu_with("V100", architecture="Vulta"), "no machine image is known"),
    ("check_gpu_sources", lambda: gpu_with("V100", sources=without(V100.sources, "tdp_w")), "its tdp_w has no source"),
    ("check_months", lambda: month_with("24.12", month="24.13"), "not a valid release; expected YY.MM"),
    ("check_months", lambda: month_with("24.12", source=""), "it has no source"),
    ("check_months", lambda: month_with("24.12", other_drivers=(560,)), "not all older than R560"),
    (
        "check_month_order",
        lambda: month_with("24.12", month="23.12"),
        "it is listed after 24.11, which is not an earlier release",
    ),
    ("check_month_order", lambda: month_with("24.12", cuda="11.8"), "11.8 is older than 12.6.3 in release 24.11"),
    ("check_month_order", lambda: month_with("24.12", driver=555), "driver R555 is older than R560 in release 24.11"),
    (
        "check_month_order",
        lambda: month_with("25.02", lowest="7.0"),
        "compute capability 7.0 is lower than 7.5 in release 25.01",
    ),
    (
        "check_months_for_gpus",
        lambda: gpu_with("V100", last_ngc="25.01"),
        "release 25.01 is in its range but needs compute capability 7.5",
    ),
    (
        "check_months_for_gpus",
        lambda: gpu_with("V100", first_cuda="9.1"),
        "release 17.09 is in its range with CUDA 9.0",
    ),
    (
        "check_months_for_gpus",
        lambda: gpu_with("V100", last_ngc=None),
        "release 25.08 is in its range with CUDA 13.0.1, but the last CUDA version for the GPU is 12",
    ),
    (
        "check_months_for_gpus",
        lambda: gpu_with("T4", last_driver=580),
        "release 26.07 is in its range with driver R610, but the last driver branch for the GPU is R580",
    ),
    ("check_images", lambda: image_with("pytorch:24.12-py3", image="pytorch"), "not an image with a tag"),
    ("check_images", lambda: image_with("pytorch:24.12-py3", source=""), "it has no source"),
    ("check_images", lambda: image_with("caffe2:18.08-py3", highest="5.0"), "native code ranges from 6.0 down to 5.0"),
    ("check_images", lambda: image_with("pytorch:24.12-py3", lowest="5.2"), "its NGC release requires at least 6.0"),
    (
        "check_images",
        lambda: image_with("caffe2:18.08-py3", last_for=("Ampere",)),
        "but does not support this architecture",
    ),
    (
        "check_images",
        lambda: image_with("pytorch:25.01-py3", last_for=("Volta",)),
        "another image is also marked as the last pytorch image",
    ),
    ("check_wheels", lambda: wheels_with("cu128", "2.7", last="2.8"), "cu128: two rows cover PyTorch 2.8"),
    (
        "check_wheels",
        lambda: wheels_with("cu126", "2.6", default_to="2.8"),
        "default wheels: two rows cover PyTorch 2.8",
    ),
    ("check_wheels", lambda: wheels_with("cu126", "2.6", last="2.5"), "its last version 2.5 is older than its first"),
    ("check_wheels", lambda: wheels_with("cu126", "2.6", capabilities=("7.0", "6.0")), "are not in order"),
    ("check_wheels", lambda: wheels_with("cu126", "2.6", source=""), "it has no source"),
    ("check_wheels", lambda: wheels_with("cu126", "2.6", default_from="2.5", default_to="2.5"), "it is the default"),
    (
        "check_wheels_for_gpus",
        lambda: gpu_with("V100", last_torch="2.15"),
        "its last_torch is 2.15, but 2.14 according to the wheels",
    ),
    (
        "check_wheels_for_gpus",
        lambda: gpu_with("V100", first_torch_without="2.8"),
        "its first_torch_without is 2.8, but 2.11 according to the wheels",
    ),
    (
        "check_wheels_for_gpus",
        lambda: gpu_with("T4", last_torch="2.14"),
        "its last_torch is 2.14, but None according to the wheels",
    ),
    (
        "check_wheels_for_gpus",
        lambda: wheels_with("cu126", "2.6", last="2.13"),
        "M40: its last_torch is 2.14, but 2.13 according to the wheels",
    ),
    (
        "check_efa_minimums",
        lambda: minimum_with("p5.48xlarge", instance_type="g4dn.xlarge"),
        "it has EFA minimum versions but does not support EFA",
    ),
    ("check_efa_minimums", lambda: minimum_with("p5.48xlarge", source=""), "its EFA minimum versions have no source"),
    ("check_efa_minimums", lambda: minimum_with("p6-b200.48xlarge", cuda="12.0"), "CUDA 12.0 does not support B200"),
]


def test_bundled_catalog_has_no_problems():
    assert problems(KNOWN) == ()


@pytest.mark.parametrize(
    ("rule", "broken", "told"), BROKEN, ids=[f"{rule}-{at}" for at, (rule, _, _) in enumerate(BROKEN)]
)
def test_rule_reports_broken_data(rule: str, broken: Callable[[], CatalogData], told: str):
    asked = next(one for one in RULES if one.__name__ == rule)
    found = [str(one) for one in asked(broken())]
    assert found
    assert any(told in one for one in found), found
    assert problems(broken())


def test_every_rule_has_broken_sample():
    assert {rule.__name__ for rule in RULES} == {rule for rule, _, _ in BROKEN}


def test_every_efa_type_has_minimum_versions():
    assert set(KNOWN.software.fabric) == {kind.name for kind in KNOWN.catalog.rentable if kind.efa_interfaces}


def test_names_are_unique_in_data_files():
    names = [row["name"] for file in TYPE_FILES for row in read_data_file(file)["instance_types"]]
    offers = [row["name"] for row in read_data_file("offers.json")["offers"]]
    gpus = [row["name"] for row in read_data_file("gpus.json")["gpus"]]
    months = [row["month"] for row in read_data_file("software.json")["ngc"]]
    for rows in (names, offers, gpus, months):
        assert len(rows) == len(set(rows))
    assert set(offers) <= set(names)
    observed = read_data_file("observed_prices.json")
    assert {name for prices in observed.values() for name in prices} - {*observed["sources"]} <= {*names}
