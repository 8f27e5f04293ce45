"""Check GPUs for valid ranges and for consistency with the software data."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final, TypeVar

from cloudgpu.catalog.checking.known import CatalogData, DataProblem, parse_version
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.images import driver_for
from cloudgpu.errors import RecipeError

Ordered = TypeVar("Ordered", int, str)

_FIRST_OPEN: Final = 75
"""Lowest compute capability (Turing) whose GPUs have the GSP processor that open kernel modules require."""


def check_version_ranges(data: CatalogData) -> Iterator[DataProblem]:
    """Check that no range of driver, CUDA or NGC versions ends before it starts."""
    for gpu in data.catalog.gpus.values():
        first_cuda = None if gpu.first_cuda is None else parse_version(gpu.first_cuda)[0]
        if _crossed(gpu.first_driver, gpu.last_driver):
            yield DataProblem(
                gpu.name, f"its first driver R{gpu.first_driver} is newer than its last driver R{gpu.last_driver}"
            )
        if _crossed(first_cuda, gpu.last_cuda_major):
            yield DataProblem(
                gpu.name, f"its first CUDA version {gpu.first_cuda} is newer than its last, {gpu.last_cuda_major}"
            )
        if _crossed(gpu.first_ngc, gpu.last_ngc):
            yield DataProblem(gpu.name, f"its first NGC release {gpu.first_ngc} is newer than its last, {gpu.last_ngc}")
        if gpu.first_ngc is None and gpu.last_ngc is not None:
            yield DataProblem(gpu.name, f"its NGC releases end with {gpu.last_ngc} but have no first release")


def _crossed(first: Ordered | None, last: Ordered | None) -> bool:
    return first is not None and last is not None and first > last


def check_gpus(data: CatalogData) -> Iterator[DataProblem]:
    """Check the memory sizes, kernel modules, NVLink rate and replacement of every GPU."""
    available = {instance_type.gpu for instance_type in data.catalog.rentable if not instance_type.retired}
    for gpu in data.catalog.gpus.values():
        sizes = [memory.gib for memory in gpu.memories]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            yield DataProblem(gpu.name, f"its memory sizes are invalid: {', '.join(map(str, sizes)) or 'none'}")
        if not gpu.modules or ("open" in gpu.modules and gpu.sm < _FIRST_OPEN):
            yield DataProblem(gpu.name, f"its kernel modules are invalid: {', '.join(gpu.modules) or 'none'}")
        if gpu.nccl_link_gb_s is not None and not gpu.nvlink_links:
            yield DataProblem(gpu.name, "it has an NVLink rate but no NVLink links")
        if gpu.replacement is not None and gpu.replacement not in available:
            yield DataProblem(gpu.name, f"AWS does not offer its replacement {gpu.replacement}")


def check_bootstrap_drivers(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every GPU supports the driver branch and the kernel modules that the bootstrap installs."""
    for gpu in data.catalog.gpus.values():
        try:
            driver = driver_for(gpu.architecture)
        except RecipeError as err:
            yield DataProblem(gpu.name, str(err))
            continue
        if not (gpu.first_driver or 0) <= driver.branch <= (gpu.last_driver or driver.branch):
            yield DataProblem(gpu.name, f"the bootstrap's driver R{driver.branch} is outside its driver range")
        if driver.flavour not in gpu.modules:
            yield DataProblem(
                gpu.name, f"the bootstrap installs {driver.flavour} modules, which do not support the GPU"
            )


def check_gpu_sources(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every field of a GPU has a source, even if its value is unknown."""
    names = [spec.name for spec in fields(Gpu) if spec.name != "sources"]
    for gpu in data.catalog.gpus.values():
        for name in names:
            if not gpu.sources.get(name):
                yield DataProblem(gpu.name, f"its {name} has no source")
