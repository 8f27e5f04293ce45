"""Ports and environment variables that cloudgpu reserves and a recipe must not use."""

from collections.abc import Mapping
from typing import Final

RUN_PORTS: Final = range(20000, 32000)
"""TCP ports for the rendezvous (first half) and for the connections between the agents of a run (second half).

The range is below Linux's ephemeral ports (32768-60999), which outgoing connections could occupy at any time.
"""

_EVERY: Final = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "CLOUDGPU_RUN_ID",
        "CLOUDGPU_RANK",
        "CLOUDGPU_WORLD_SIZE",
        "CLOUDGPU_NODE_RANK",
        "CLOUDGPU_NUM_NODES",
        "CLOUDGPU_NODE_IPS",
        "CLOUDGPU_GPUS_PER_NODE",
        "CLOUDGPU_OUTPUTS",
        "CLOUDGPU_CHECKPOINT",
    }
)
_TORCHRUN: Final = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE",
    }
)
_PS_LITE: Final = frozenset(
    {
        "DMLC_ROLE",
        "DMLC_PS_ROOT_URI",
        "DMLC_PS_ROOT_PORT",
        "DMLC_NUM_WORKER",
        "DMLC_NUM_SERVER",
        "DMLC_NODE_HOST",
    }
)
_ROLE: Final = frozenset({"CLOUDGPU_ROLE"})

LAUNCHER_VARIABLES: Final[Mapping[str, frozenset[str]]] = {
    "torchrun": _EVERY | _TORCHRUN,
    "mpirun": _EVERY,
    "deepspeed": _EVERY,
    "kvstore": _EVERY | _ROLE | _PS_LITE,
    "tf-config": _EVERY | _ROLE | {"TF_CONFIG"},
    "each-node": _EVERY,
    "head-only": _EVERY,
    "service": _EVERY,
}
"""Launcher -> variables that cloudgpu or the launcher sets for every rank, so that a recipe must not set them."""
