"""The record of a run: its recipe, cluster, ranks, result and outputs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from cloudgpu import bounds
from cloudgpu.decoding import AnyFloat
from cloudgpu.state.documents import StateFile

RunState = Literal["preparing", "running", "succeeded", "failed", "cancelled", "lost", "not-run", "interrupted"]
FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "lost", "not-run", "interrupted"})
"""States in which a run has ended and no longer changes."""
CLUSTER_DELETED: Final = "its cluster was deleted"
"""The reason recorded for a run that was cancelled because its cluster was deleted."""


@dataclass(frozen=True)
class RunRecord:
    """The recorded state of a run.

    Attributes:
        keep: Whether the cluster is kept regardless of the outcome.
        keep_on_failure: Whether the cluster is kept if the run fails.
        tried: One line for each candidate that had no capacity.
        ranks: Ranks by node index, written before the ranks are started. If not empty, the ranks may be running.
        image: Container image that the ranks run in, by digest; empty if the ranks run without a container.
        transport: Network between the nodes as NCCL named it, such as `efa` or `tcp`, or `unknown`; empty if it was not
            watched, as for one node, nodes without GPUs, and runs of earlier versions.
        options: Options of `train` that start the same run again, such as `--set` and `lr=0.1`; empty in old records.
        collected: Whether all outputs on the nodes were downloaded; None before the first attempt, and in old records.
    """

    run_id: str
    cluster: str
    recipe: str
    recipe_path: str
    owner: str
    team: str
    target: str
    started_at: datetime
    state: RunState = "preparing"
    keep: bool = False
    keep_on_failure: bool = False
    tried: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)
    recipe_digest: str = ""
    options: tuple[str, ...] = ()
    image: str = ""
    ranks: Mapping[Annotated[str, bounds.parse_whole_number], tuple[int, ...]] = field(default_factory=dict)
    stages: tuple[tuple[str, float], ...] = ()
    metrics: Mapping[str, AnyFloat] = field(default_factory=dict)
    reason: str = ""
    failed_rank: int | None = None
    exit_code: int | None = None
    transport: str = ""
    outputs: tuple[str, ...] = ()
    collected: bool | None = None
    ended_at: datetime | None = None

    @property
    def judged(self) -> bool:
        """True if the run's final state is known, even if its ledger rows are still open."""
        return self.state in FINAL_STATES

    @property
    def uncollected(self) -> tuple[str, ...]:
        """The run's output patterns if ranks were started and not all outputs were downloaded; otherwise empty."""
        # Records of earlier versions list only the downloaded files.
        fetched = bool(self.outputs) if self.collected is None else self.collected
        if fetched or not self.ranks:
            return ()
        return tuple(str(pattern) for pattern in self.resolved.get("outputs") or ())


def _stored(record: RunRecord) -> dict[str, Any]:
    fields = asdict(record)
    for added in ("transport", "options"):
        if not fields[added]:
            del fields[added]  # a file that an earlier version wrote stays the same
    return fields


RUN: Final = StateFile("run record", RunRecord, encode=_stored)
