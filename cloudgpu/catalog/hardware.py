"""GPUs and instance types as values. The figures are in `data/`, with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Literal

Lifecycle = Literal["active", "previous", "retired"]
Provider = Literal["aws", "alibaba", "own"]
"""Who runs the machine: `own` stands for hosts of one's own, as a DGX-1."""
Flavour = Literal["proprietary", "open"]
"""Of NVIDIA's kernel modules."""
UsageClass = Literal["on-demand", "spot", "capacity-block"]


@dataclass(frozen=True)
class Memory:
    """A memory size of a GPU model."""

    gib: Decimal
    bandwidth_gb_s: int | None
    """Peak, GB (1e9 bytes) a second; None where it is unknown."""
    sold_as_gb: int
    """The size in its maker's words, as in `A10G 24GB`, which EC2 lists with 22.35 GiB."""


@dataclass(frozen=True)
class PeakRates:
    """Peak rates without sparsity, in 1e12 operations per second; None if the GPU lacks the unit."""

    fp32: Decimal | None = None
    fp16: Decimal | None = None
    """With tensor cores where it has them."""
    tf32: Decimal | None = None
    bf16: Decimal | None = None
    fp8: Decimal | None = None
    int8: Decimal | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU model and its software support. None is unknown unless a field says otherwise."""

    name: str
    architecture: str
    compute_capability: str
    last_driver: int | None
    """Last driver branch; None while newer ones still come."""
    last_cuda_major: int | None
    """None while newer ones still come."""
    first_ngc: str | None
    """First month of NVIDIA's framework containers that knows it, for example `17.09`; None where none ever did."""
    last_ngc: str | None
    """Last such month; None while newer ones still come."""
    first_torch_without: str | None
    """First PyTorch whose default wheel lacks it; another index may still have one."""
    last_torch: str | None
    """Last PyTorch with any wheel for it."""
    image: str
    """SSM parameter of the machine image that suits it."""
    memories: tuple[Memory, ...] = ()
    """In which sizes it comes, the smallest first."""
    rates: PeakRates = PeakRates()
    first_driver: int | None = None
    """First driver branch that knows it."""
    modules: tuple[Flavour, ...] = ("proprietary", "open")
    """Flavours of the kernel modules that drive it."""
    first_cuda: str | None = None
    """First CUDA toolkit that builds native code for it."""
    last_cudnn: str | None = None
    """Last cuDNN series that runs on it; None while newer ones still come."""
    nvlink_links: int | None = None
    """0 for a GPU without NVLink."""
    nccl_link_gb_s: Decimal | None = None
    """What NCCL reckons with for each NVLink link, one way, GB a second; None without NVLink."""
    pcie: str | None = None
    """Generation and lanes, for example `3.0 x16`."""
    tdp_w: int | None = None
    ecc: bool | None = None
    replacement: str | None = None
    """The GPU that stands where it stood, for models that nobody can rent any more."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field -> where the figure comes from."""

    @property
    def sm(self) -> int:
        """Compute capability as in compiler options: 70 for 7.0."""
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
    """EFA interfaces that it can have; 0 means none."""
    network_cards: int
    gpudirect_rdma: bool
    lifecycle: Lifecycle
    retired_on: date | None
    replacement: str | None
    """Nearest type that still works, for retired ones."""
    zones: Mapping[str, tuple[str, ...]]
    """Region -> zones by name. Names differ between accounts, so only a cloud's own answer is certain."""
    on_demand_usd: Mapping[str, Decimal]
    """Region -> USD an hour."""
    spot_usd: Mapping[str, tuple[Decimal, Decimal]]
    """Region -> lowest and highest USD an hour seen."""
    priced_on: date
    """The day the prices of this version of cloudgpu were read."""
    source: str
    """Where its prices come from."""
    provider: Provider = "aws"
    usage_classes: tuple[UsageClass, ...] = ("on-demand", "spot")
    """How EC2 sells it."""
    network_gbps: Decimal | None = None
    """Of all its cards together; None where it is unknown."""
    network: str = ""
    """In the provider's own words, for example `Up to 10 Gigabit`."""
    nvme_disks: int = 0
    nvme_gb: int = 0
    """Of each local disk, in GB (1e9 bytes); gone with the instance."""
    nvlink: bool = False
    """Whether its GPUs are joined by NVLink or NVSwitch."""
    rates_read_on: Mapping[str, date] = field(default_factory=dict)
    """Region -> the day on which its prices there were read, where that is later than `priced_on`."""
    capacity_block_usd: Mapping[str, Decimal] = field(default_factory=dict)
    """Region -> USD an hour of one instance in a Capacity Block, which is paid for in advance."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Kind of figure -> where it comes from: `hardware`, `lifecycle`, `network`, `zones`, `on_demand_usd` and so on."""

    @property
    def retired(self) -> bool:
        """True if the type can no longer be launched."""
        return self.lifecycle == "retired"

    @property
    def gpu_memory_total_gib(self) -> Decimal:
        """Memory of all its GPUs together."""
        return self.gpus * self.gpu_memory_gib

    def price_read_on(self, region: str) -> date:
        """Return the day on which its prices in a region were read."""
        return self.rates_read_on.get(region, self.priced_on)
