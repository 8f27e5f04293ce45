"""NCCL and network settings by instance type, each with a reason. A recipe may override any of them by name.

Since version 1.7, the EFA plugin aws-ofi-nccl configures itself, and additional settings interfere with it. See
`docs/decisions/0003-the-agent-starts-the-ranks.md`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

_NO_RDMA: Final = ("p3dn.",)
_EFA_TYPES: Final = ("p3dn.", "p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-")
_EFA_SIZES: Final = frozenset(
    {
        *(f"g4dn.{size}" for size in ("8xlarge", "12xlarge", "16xlarge", "metal")),
        *(f"{family}.{size}" for family in ("g5", "g6", "g6e") for size in ("8xlarge", "12xlarge", "16xlarge")),
        *(f"{family}.{size}" for family in ("g5", "g6", "g6e") for size in ("24xlarge", "48xlarge")),
        *(f"{family}.{size}" for family in ("g7", "g7e") for size in ("8xlarge", "12xlarge", "24xlarge", "48xlarge")),
        "gr6.8xlarge",
    }
)
_SHARED_MEMORY_COPY: Final = ("g5.", "g6.")
_ROCE: Final = ("ecs.sccgn",)
"""Alibaba Cloud's Super Computing Cluster types, whose Mellanox cards support RoCE v2."""


@dataclass(frozen=True)
class RankVariable:
    """An environment variable to set for every rank, with the reason."""

    name: str
    value: str
    why: str


def has_efa(instance_type: str) -> bool:
    """Return True if nodes of this type can have an EFA interface."""
    return instance_type.startswith(_EFA_TYPES) or instance_type in _EFA_SIZES


def rank_variables(
    instance_type: str, nodes: int, network: str, excluded: Collection[str] = ()
) -> tuple[RankVariable, ...]:
    """Return the variables to set for the ranks on nodes of an instance type, except those that the recipe sets.

    Args:
        instance_type: Type of every node.
        nodes: Number of nodes.
        network: `resources.network` of the recipe.
        excluded: Names of the variables that the recipe sets.
    """
    variables = [*_within_node(instance_type), *(_between_nodes(instance_type, network) if nodes > 1 else ())]
    return tuple(variable for variable in variables if variable.name not in excluded)


def _within_node(instance_type: str) -> tuple[RankVariable, ...]:
    if not instance_type.startswith(_SHARED_MEMORY_COPY):
        return ()
    why = "without NVLink or peer access, CUDA copies through shared memory are twice as fast"
    return (RankVariable("NCCL_SHM_USE_CUDA_MEMCPY", "1", why),)


def _between_nodes(instance_type: str, network: str) -> tuple[RankVariable, ...]:
    if instance_type.startswith(_ROCE) and network != "tcp":
        return (
            RankVariable("NCCL_IB_HCA", "mlx5", "use the Mellanox cards for RoCE"),
            RankVariable("NCCL_IB_GID_INDEX", "3", "use the routable RoCE v2 address"),
        )
    if not has_efa(instance_type):
        return _SOCKETS
    if network == "tcp":
        why = "resources.network is tcp: use sockets even if the image includes the EFA plugin"
        return (RankVariable("NCCL_NET", "Socket", why), *_SOCKETS)
    if instance_type.startswith(_NO_RDMA):
        why = "forked data loaders cannot inherit the huge pages that EFA uses without RDMA"
        return (RankVariable("FI_EFA_USE_HUGE_PAGE", "0", why),)
    return ()


_FLOWS: Final = "one TCP flow carries 5 to 10 Gb/s, so several are needed to saturate the card"
_SOCKETS: Final = (
    RankVariable("NCCL_SOCKET_IFNAME", "^lo,docker,veth", "exclude interfaces that do not reach other nodes"),
    RankVariable("NCCL_SOCKET_NTHREADS", "4", _FLOWS),
    RankVariable("NCCL_NSOCKS_PERTHREAD", "4", _FLOWS),
)
