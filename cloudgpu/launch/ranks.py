"""What a launcher produces: every rank's command and environment, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankLaunch:
    """One rank. `env` holds no secret: those reach the agent by standard input only."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class NodeLaunch:
    """All ranks of one node."""

    node_index: int
    ranks: tuple[RankLaunch, ...]


@dataclass(frozen=True)
class LaunchContext:
    """What a launcher needs besides recipe and inventory.

    Attributes:
        run_id: The run.
        workdir: Absolute work directory on every node.
        interpreter: Absolute path of the Python that runs `*.py` commands.
        master_port: TCP port of the rendezvous on the head, its own for every run.
        data: Dataset name -> absolute directory on the nodes.
        outputs: Absolute directory for outputs on the nodes.
        checkpoint: Absolute checkpoint directory on the nodes, or empty.
        storage: Name of what is mounted -> absolute directory on the nodes.
    """

    run_id: str
    workdir: str
    interpreter: str
    master_port: int
    data: Mapping[str, str]
    outputs: str
    checkpoint: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
