"""Query EC2 for the instance types with NVIDIA GPUs that a region offers."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from cloudgpu.aws.pricing.prices import strip_trailing_zeros
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.catalog.snapshots.snapshot import TypeFacts

GPU_FAMILIES: Final = [{"Name": "instance-type", "Values": ["p*", "g*"]}]
"""EC2 has no filter for GPUs, but the names of all its instance types with NVIDIA GPUs match these patterns."""
_PAGE: Final = 100
_MIB_PER_GIB: Final = 1024


def describe_gpu_types(clients: Clients) -> dict[str, TypeFacts]:
    """Return the region's instance types by name, limited to those that cloudgpu's machine images support.

    These are the types with an x86-64 processor and one model of NVIDIA GPU, attached whole rather than partitioned.
    """
    with convert_response_errors(f"listing the GPU instance types in {clients.region}"):
        paginator = clients.client("ec2").get_paginator("describe_instance_types")
        pages = paginator.paginate(Filters=GPU_FAMILIES, PaginationConfig={"PageSize": _PAGE})
        return dict(sorted(_rows(pages)))


def _rows(pages: Any) -> Iterator[tuple[str, TypeFacts]]:  # noqa: ANN401
    for page in pages:
        for row in page["InstanceTypes"]:
            gpus = row.get("GpuInfo", {}).get("Gpus") or []
            if len(gpus) == 1 and _is_whole_nvidia(gpus[0]) and _is_x86(row):
                yield str(row["InstanceType"]), _facts(row, gpus[0])


def _is_whole_nvidia(gpu: Mapping[str, Any]) -> bool:
    return gpu.get("Manufacturer") == "NVIDIA" and gpu.get("GpuPartitionSize", 1) == 1


def _is_x86(row: Mapping[str, Any]) -> bool:
    return "x86_64" in row["ProcessorInfo"].get("SupportedArchitectures", [])


def _facts(row: Mapping[str, Any], gpu: Mapping[str, Any]) -> TypeFacts:
    network = row.get("NetworkInfo", {})
    disks = row.get("InstanceStorageInfo", {}).get("Disks") or [{}]
    return TypeFacts(
        gpu=str(gpu["Name"]),
        gpus=int(gpu["Count"]),
        gpu_memory_gib=strip_trailing_zeros(
            (Decimal(gpu["MemoryInfo"]["SizeInMiB"]) / _MIB_PER_GIB).quantize(Decimal("0.1"))
        ),
        vcpus=int(row["VCpuInfo"]["DefaultVCpus"]),
        memory_gib=int(row["MemoryInfo"]["SizeInMiB"]) // _MIB_PER_GIB,
        efa_interfaces=int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)),
        network_cards=int(network.get("MaximumNetworkCards", 1)),
        network=str(network.get("NetworkPerformance", "")),
        usage_classes=tuple(str(usage_class) for usage_class in row.get("SupportedUsageClasses", [])),
        nvme_disks=int(disks[0].get("Count", 0)),
        nvme_gb=int(disks[0].get("SizeInGB", 0)),
        current=bool(row.get("CurrentGeneration")),
    )
