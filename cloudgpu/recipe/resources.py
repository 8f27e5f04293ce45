"""The `resources` section: on what a run needs to run."""

from typing import Annotated, Literal

from pydantic import Field

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import SizeGib, VolumeGib

Prefer = Literal["order", "price", "speed", "region", "spot"]


class Resources(Section):
    """On what the run needs to run. Name either GPUs or instance types."""

    gpu: str | None = None
    """GPU and how many a node, for instance `V100:8`, or `V100-32GB:8` where the memory of each matters."""
    any_of: tuple[str, ...] = ()
    """Several GPUs (`V100:8`) or instance types (`p3dn.24xlarge`), in the order to try them."""
    instance_type: str | None = None
    """One instance type, for instance `p3dn.24xlarge`."""
    gpu_memory: SizeGib | None = None
    """Memory that the run needs on each GPU, for instance `24GiB`; types with less are left out."""
    nodes: int = Field(default=1, ge=1, le=1000, strict=True)
    """How many identical nodes, launched together or not at all."""
    market: Literal["on-demand", "spot", "reservation", "capacity-block"] = "on-demand"
    """How the nodes are bought: at the price of the hour, as spare capacity that AWS may take back, or in capacity
    that you have reserved (`reservation`) or bought for a time (`capacity-block`)."""
    reservation: str | None = Field(default=None, pattern=r"^cr-[0-9a-f]{8,17}$")
    """Capacity reservation or Capacity Block to launch into, for the two markets that need one."""
    regions: tuple[str, ...] = ()
    """Regions in the order to try them; empty means the default region of the settings."""
    zones: tuple[str, ...] = ()
    """Only these zones, for instance `us-east-1c`; empty means all that offer the type."""
    prefer: Prefer = "order"
    """What is tried first: hardware, regions and zones in the `order` given, the lowest `price` of the whole cluster's
    hour, the highest peak `speed` of a node, the first `region` with any of the hardware, or `spot` capacity before
    on-demand (with `market: on-demand`). Equals stay in order, and what was refused a moment ago comes last."""
    pool: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    """With `--on ssh`: only hosts of this pool of the inventory."""
    network: Literal["efa", "tcp", "auto"] = "auto"
    """`efa` insists on RDMA networking, `tcp` never uses it, `auto` uses it where the type has it."""
    disk: VolumeGib = SizeGib(200)
    """Root disk of every node, for instance `300GiB`; at most `64TiB`."""
    image: str | None = None
    """Machine image: `ami-...` or the name of an SSM parameter; empty means the one that suits the GPU."""
    driver: Annotated[int, Field(strict=True, ge=300, le=999)] | None = None
    """Branch of NVIDIA's driver that the bootstrap installs on plain Ubuntu, for instance `580`; empty means the one
    that suits the GPU."""
