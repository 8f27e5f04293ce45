"""NCCL and network settings by node type, with reasons. A recipe may override them by name.

Modern EFA software (aws-ofi-nccl 1.7 and later) configures itself, and settings from outside interfere with it. See
`docs/decisions/0003-ranks-are-started-by-the-agent.md`.
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
"""Alibaba's Super Computing Clusters: Mellanox cards that speak RoCE v2."""


@dataclass(frozen=True)
class RankVariable:
    """An environment variable for every rank."""

    name: str
    value: str
    why: str


def has_efa(instance_type: str) -> bool:
    """Return True if nodes of this type can have an EFA interface."""
    return instance_type.startswith(_EFA_TYPES) or instance_type in _EFA_SIZES


def settings(instance_type: str, nodes: int, network: str, given: Collection[str] = ()) -> tuple[RankVariable, ...]:
    """Return the settings for ranks on this many nodes of a type, without those that the recipe sets.

    Args:
        instance_type: Type of every node.
        nodes: Number of nodes.
        network: `resources.network` of the recipe.
        given: Names of variables that the recipe sets.
    """
    found = [*_copies(instance_type), *(_between(instance_type, network) if nodes > 1 else ())]
    return tuple(setting for setting in found if setting.name not in given)


def _copies(instance_type: str) -> tuple[RankVariable, ...]:
    if not instance_type.startswith(_SHARED_MEMORY_COPY):
        return ()
    why = "GPUs without NVLink that may not read each other: copies through shared memory are twice as fast"
    return (RankVariable("NCCL_SHM_USE_CUDA_MEMCPY", "1", why),)


def _between(instance_type: str, network: str) -> tuple[RankVariable, ...]:
    if instance_type.startswith(_ROCE) and network != "tcp":
        return (
            RankVariable("NCCL_IB_HCA", "mlx5", "RoCE: the Mellanox cards"),
            RankVariable("NCCL_IB_GID_INDEX", "3", "RoCE v2: the address that is routed"),
        )
    if not has_efa(instance_type):
        return _SOCKETS
    if network == "tcp":
        why = "resources.network is tcp: sockets, also where the image brings the plugin for EFA"
        return (RankVariable("NCCL_NET", "Socket", why), *_SOCKETS)
    if instance_type.startswith(_NO_RDMA):
        why = "a forked data loader cannot inherit the huge pages that EFA takes where it has no RDMA"
        return (RankVariable("FI_EFA_USE_HUGE_PAGE", "0", why),)
    return ()


_FLOWS: Final = "one TCP flow carries 5 to 10 Gb/s; several fill the card"
_SOCKETS: Final = (
    RankVariable("NCCL_SOCKET_IFNAME", "^lo,docker,veth", "interfaces that lead to no other node are left out"),
    RankVariable("NCCL_SOCKET_NTHREADS", "4", _FLOWS),
    RankVariable("NCCL_NSOCKS_PERTHREAD", "4", _FLOWS),
)
