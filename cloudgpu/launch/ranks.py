"""The output of a launcher: every rank's command and environment, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RankLaunch:
    """The command and environment of a rank. Secrets are not in `env`: they reach the agent through standard input."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    role: str = ""
    """Role of the process, such as `worker`, `server` or `scheduler`; empty if its launcher has no roles."""
    decides: bool = True
    """Whether the run waits for this process. When all processes that the run waits for have succeeded, the other
    processes are stopped. The failure of any process fails the run."""


@dataclass(frozen=True)
class NodeFile:
    """A file that a node needs before its ranks start. The file does not contain secrets."""

    path: str
    """Path relative to the run's directory on the node."""
    content: str
    mode: int = 0o600


@dataclass(frozen=True)
class NodeLaunch:
    """The ranks of one node, and the files that they need. A node may have no ranks."""

    node_index: int
    ranks: tuple[RankLaunch, ...]
    files: tuple[NodeFile, ...] = ()
    reaches: tuple[int, ...] = ()
    """Indices of the nodes that this node logs in to over SSH during the run."""


@dataclass(frozen=True)
class LaunchContext:
    """The input to a launcher in addition to the recipe and the inventory.

    Attributes:
        run_id: ID of the run.
        workdir: Absolute path of the work directory on every node.
        interpreter: Absolute path of the Python that runs `*.py` commands.
        master_port: TCP port of the rendezvous on the head node, derived from the run ID.
        data: Dataset name -> absolute directory on the nodes.
        outputs: Absolute directory for outputs on the nodes.
        checkpoint: Absolute checkpoint directory on the nodes; empty if the run has no checkpoints.
        storage: Mount name -> absolute directory on the nodes.
        run_dir: Absolute path of the run's directory on every node, with logs, status and the launcher's files.
        enter: Node index -> command prefix that runs a program inside the run's container on that node; empty if ranks
            run on the node itself.
    """

    run_id: str
    workdir: str
    interpreter: str
    master_port: int
    data: Mapping[str, str]
    outputs: str
    checkpoint: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    run_dir: str = ""
    enter: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
