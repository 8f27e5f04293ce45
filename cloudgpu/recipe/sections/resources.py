"""The `resources` section of a recipe: the hardware, market and location of the nodes."""

from typing import Annotated, Literal

from pydantic import Field

from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.units import MemoryGib, SizeGib, VolumeGib

Prefer = Literal["order", "price", "speed", "region", "spot"]


class Resources(Section):
    """The nodes that the run needs. Exactly one of `gpu`, `any_of` and `instance_type` is required."""

    gpu: str | None = None
    """GPU model and count per node, for example `V100:8`, or `V100-32GB:8` to require a memory size."""
    any_of: tuple[str, ...] = ()
    """Several GPUs (`V100:8`) or instance types (`p3dn.24xlarge`), in order of preference."""
    instance_type: str | None = None
    """One instance type, for example `p3dn.24xlarge`."""
    gpu_memory: MemoryGib | None = None
    """Minimum memory per GPU, for example `24GiB` or `24GB`; instance types with less are excluded."""
    nodes: int = Field(default=1, ge=1, le=1000, strict=True)
    """Number of identical nodes. They are launched together or not at all."""
    market: Literal["on-demand", "spot", "reservation", "capacity-block"] = "on-demand"
    """Purchase option for the nodes: `on-demand`; `spot` capacity, which AWS may reclaim; a Capacity `reservation`; or
    a `capacity-block` that you have bought for a period."""
    reservation: str | None = Field(default=None, pattern=r"^cr-[0-9a-f]{8,17}$")
    """ID of the Capacity Reservation or Capacity Block to launch into; required with the markets `reservation` and
    `capacity-block`."""
    regions: tuple[str, ...] = ()
    """Regions in order of preference. Default: the default region from the settings."""
    zones: tuple[str, ...] = ()
    """Availability zones to use, for example `us-east-1c`. Default: all zones that offer the instance type."""
    prefer: Prefer = "order"
    """Preference between candidates: hardware, regions and zones in the given `order`, the lowest hourly `price` of the
    cluster, the highest peak `speed` per node, the first `region` with any of the hardware, or `spot` capacity before
    on-demand (with `market: on-demand`). Ties keep the given order. Candidates that recently had no capacity come
    last."""
    pool: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    """With `--on ssh`: inventory pool whose hosts may be used. Default: all hosts in the inventory."""
    network: Literal["efa", "tcp", "auto"] = "auto"
    """`efa` requires EFA, and the run fails if NCCL reports another network; `tcp` never uses EFA; `auto` uses EFA
    between nodes if the instance type supports it."""
    disk: VolumeGib = SizeGib(200)
    """Size of the root disk of every node, for example `300GiB`; at most `64TiB`."""
    image: str | None = None
    """Machine image: `ami-...` or the name of an SSM parameter. Default: an image that supports the GPU."""
    driver: Annotated[int, Field(strict=True, ge=300, le=999)] | None = None
    """NVIDIA driver branch that the bootstrap installs on plain Ubuntu, for example `580`. Default: a branch that
    supports the GPU."""
