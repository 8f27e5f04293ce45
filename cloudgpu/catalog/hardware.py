"""What a GPU and an instance type are, as values. The figures lie in `data/`, each kind with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

Lifecycle = Literal["active", "previous", "retired"]


@dataclass(frozen=True)
class Gpu:
    """A GPU model and the software that still runs on it."""

    name: str
    architecture: str
    compute_capability: str
    last_driver: int | None
    """Last driver branch; None while newer ones still come."""
    last_cuda_major: int | None
    first_ngc: str
    """First month of NVIDIA's framework containers that knows it, for instance `17.09`."""
    last_ngc: str | None
    """Last such month; None while newer ones still come."""
    first_torch_without: str | None
    """First PyTorch whose default wheel lacks it; another index may still have one."""
    last_torch: str | None
    """Last PyTorch with any wheel for it."""
    image: str
    """SSM parameter of the machine image that suits it."""


@dataclass(frozen=True)
class InstanceType:
    """An instance type: hardware, where it is offered, what it costs."""

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
    source: str
    """Where its prices come from."""

    @property
    def retired(self) -> bool:
        """Whether nobody can launch it any more."""
        return self.lifecycle == "retired"
