"""Value types for GPUs and instance types. Their data, with sources, is in `data/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Final, Literal

Lifecycle = Literal["active", "previous", "retired"]
Provider = Literal["aws", "alibaba", "own"]
"""Operator of the machine; `own` means a self-managed host, such as a DGX-1."""
Flavour = Literal["proprietary", "open"]
"""Variant of NVIDIA's kernel modules."""
UsageClass = Literal["on-demand", "spot", "capacity-block"]
NVSWITCH_GPUS: Final = frozenset({"A100", "H100", "H200", "B200", "B300"})
"""GPUs that NVSwitch connects in types with several of them, so that CUDA needs Fabric Manager."""


@dataclass(frozen=True)
class Memory:
    """A memory size of a GPU model."""

    gib: Decimal
    bandwidth_gb_s: int | None
    """Peak memory bandwidth in GB (1e9 bytes) per second; None if unknown."""
    sold_as_gb: int
    """Nominal size that the vendor states, for example 24 for `A10G 24GB`, which EC2 lists with 22.35 GiB."""


@dataclass(frozen=True)
class PeakRates:
    """Peak rates without sparsity, in 1e12 operations per second; None if the GPU does not support the data type."""

    fp32: Decimal | None = None
    fp16: Decimal | None = None
    """Rate with tensor cores if the GPU has them."""
    tf32: Decimal | None = None
    bf16: Decimal | None = None
    fp8: Decimal | None = None
    int8: Decimal | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU model and its software support. None means unknown, unless the field's description says otherwise."""

    name: str
    architecture: str
    compute_capability: str
    last_driver: int | None
    """Last driver branch that supports the GPU; None while new branches still support it."""
    last_cuda_major: int | None
    """Last CUDA major version that supports the GPU; None while new versions still support it."""
    first_ngc: str | None
    """First NGC release of framework containers that supports the GPU, such as `17.09`; None if there is none."""
    last_ngc: str | None
    """Last NGC release of framework containers that supports the GPU; None while new releases still support it."""
    first_torch_without: str | None
    """First PyTorch version whose default wheel lacks code for the GPU; None if the newest default wheel has it.

    Wheels for other CUDA versions may have code for the GPU even if the default wheel does not.
    """
    last_torch: str | None
    """Last PyTorch version with any wheel for the GPU; None while new versions still have one."""
    image: str
    """SSM parameter of the machine image for the GPU."""
    memories: tuple[Memory, ...] = ()
    """Memory sizes of the model, smallest first."""
    rates: PeakRates = PeakRates()
    first_driver: int | None = None
    """First driver branch that supports the GPU."""
    modules: tuple[Flavour, ...] = ("proprietary", "open")
    """Kernel module variants that support the GPU."""
    first_cuda: str | None = None
    """First CUDA toolkit that builds native code for the GPU."""
    last_cudnn: str | None = None
    """Last cuDNN series that supports the GPU; None while new series still support it."""
    nvlink_links: int | None = None
    """Number of NVLink links; 0 for a GPU without NVLink."""
    nccl_link_gb_s: Decimal | None = None
    """Unidirectional bandwidth that NCCL assumes for each NVLink link, in GB per second; None without NVLink."""
    pcie: str | None = None
    """PCIe generation and lanes, for example `3.0 x16`."""
    tdp_w: int | None = None
    ecc: bool | None = None
    replacement: str | None = None
    """GPU suggested instead of a model that AWS no longer offers."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name -> source of its value."""

    @property
    def sm(self) -> int:
        """Compute capability as a number, as in compiler options: 70 for 7.0."""
        return int(self.compute_capability.replace(".", ""))


@dataclass(frozen=True)
class InstanceType:
    """An instance type: hardware, zones and prices."""

    name: str
    gpu: str
    gpus: int
    gpu_memory_gib: Decimal
    """Memory of each GPU."""
    vcpus: int
    memory_gib: int
    efa_interfaces: int
    """Maximum number of EFA interfaces; 0 if the type does not support EFA."""
    network_cards: int
    gpudirect_rdma: bool
    lifecycle: Lifecycle
    retired_on: date | None
    replacement: str | None
    """Nearest available type, for a retired type."""
    zones: Mapping[str, tuple[str, ...]]
    """Region -> availability zone names. AWS maps names to zones per account, so other accounts may see other names."""
    on_demand_usd: Mapping[str, Decimal]
    """Region -> USD per hour."""
    spot_usd: Mapping[str, tuple[Decimal, Decimal]]
    """Region -> lowest and highest observed USD per hour."""
    priced_on: date
    """Date on which the bundled prices were read."""
    source: str
    """Source of the prices."""
    provider: Provider = "aws"
    usage_classes: tuple[UsageClass, ...] = ("on-demand", "spot")
    """Usage classes in which EC2 offers the type."""
    network_gbps: Decimal | None = None
    """Total bandwidth of all network cards, in Gb per second; None if unknown."""
    network: str = ""
    """Network performance as the provider states it, for example `Up to 10 Gigabit`."""
    nvme_disks: int = 0
    nvme_gb: int = 0
    """Size of each local disk, in GB (1e9 bytes). Local disks are deleted with the instance."""
    nvlink: bool = False
    """Whether NVLink or NVSwitch connects the GPUs."""
    rates_read_on: Mapping[str, date] = field(default_factory=dict)
    """Region -> date on which the region's prices were read, if it is not `priced_on`."""
    capacity_block_usd: Mapping[str, Decimal] = field(default_factory=dict)
    """Region -> USD per hour of one instance in a Capacity Block, which is paid in advance."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Data group, such as `hardware`, `network`, `zones` or `on_demand_usd` -> source of its values."""

    @property
    def retired(self) -> bool:
        """Whether AWS no longer launches the type."""
        return self.lifecycle == "retired"

    @property
    def retirement(self) -> str:
        """Sentence about the retirement and the successor of a retired type; empty for other types."""
        if not self.retired:
            return ""
        when = "" if self.retired_on is None else f" on {self.retired_on.isoformat()}"
        return f"AWS retired {self.name}{when}, and it can no longer be launched; its successor is {self.replacement}"

    @property
    def gpu_memory_total_gib(self) -> Decimal:
        """Total memory of all GPUs."""
        return self.gpus * self.gpu_memory_gib

    def price_read_on(self, region: str) -> date:
        """Return the date on which the prices in a region were read."""
        return self.rates_read_on.get(region, self.priced_on)
