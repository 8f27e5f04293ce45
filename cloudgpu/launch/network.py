"""Communication settings by kind of node: what NCCL and gloo need where they would guess wrong.

Modern EFA software (aws-ofi-nccl 1.7 and later) sets what EFA types need by itself, and values of ours would only
fight it; so EFA nodes get nothing but what helps fork. See `docs/decisions/0003-ranks-are-started-by-the-agent.md`.
"""

from collections.abc import Mapping

from cloudgpu.launch.inventory import Node
from cloudgpu.recipe.schema import Recipe

_NOT_REAL_INTERFACES = "^lo,docker,veth"
_NO_RDMA = ("p3dn.",)
_EFA_TYPES = ("p3dn.", "p4d.", "p4de.", "p5.", "p5e.", "p5en.", "p6-", "g7e.")
_EFA_SIZES = frozenset(
    {
        *(f"g4dn.{size}" for size in ("8xlarge", "12xlarge", "16xlarge", "metal")),
        *(f"{family}.{size}" for family in ("g5", "g6", "g6e") for size in ("8xlarge", "12xlarge", "16xlarge")),
        *(f"{family}.{size}" for family in ("g5", "g6", "g6e") for size in ("24xlarge", "48xlarge")),
    }
)
_SHARED_MEMORY_COPY = ("g5.", "g6.")


def network_environment(recipe: Recipe, node: Node, nodes: int) -> Mapping[str, str]:
    """Variables for the ranks of this node; the recipe's own win over them."""
    if node.simulated:
        # Every simulated node is this machine; gloo would look up the host name and find an address of no node.
        return {"GLOO_SOCKET_IFNAME": "lo"} if node.private_address.startswith("127.") else {}
    copy = {"NCCL_SHM_USE_CUDA_MEMCPY": "1"} if node.instance_type.startswith(_SHARED_MEMORY_COPY) else {}
    if nodes == 1:
        return copy
    return {**copy, **(_efa(node) if uses_efa(recipe, node) else _tcp())}


def uses_efa(recipe: Recipe, node: Node) -> bool:
    """Whether the ranks of this node talk through EFA."""
    has_efa = node.instance_type.startswith(_EFA_TYPES) or node.instance_type in _EFA_SIZES
    return has_efa and recipe.resources.network != "tcp"


def _efa(node: Node) -> Mapping[str, str]:
    # Without RDMA the provider registers huge pages that a forked data loader cannot inherit.
    return {"FI_EFA_USE_HUGE_PAGE": "0"} if node.instance_type.startswith(_NO_RDMA) else {}


def _tcp() -> Mapping[str, str]:
    # One TCP flow carries 10 Gb/s at most inside a placement group, 5 Gb/s outside; several flows fill the card.
    return {
        "NCCL_SOCKET_IFNAME": _NOT_REAL_INTERFACES,
        "NCCL_SOCKET_NTHREADS": "4",
        "NCCL_NSOCKS_PERTHREAD": "4",
    }
