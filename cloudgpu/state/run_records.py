"""The records of runs and of matrices of runs: one JSON file each, replaced durably."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from cloudgpu import bounds
from cloudgpu.decoding import AnyFloat
from cloudgpu.errors import StateError, UsageError
from cloudgpu.paths import Home
from cloudgpu.recipe.problem import suggestion
from cloudgpu.state.documents import StateFile, documents_if_readable
from cloudgpu.targets import is_simulated

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
Values = tuple[tuple[str, str], ...]
"""A combination of a matrix: the name and the value of each axis, as the user typed them."""


@dataclass(frozen=True)
class MatrixRow:
    """A combination of a matrix and its latest run.

    Attributes:
        digest: Digest of the recipe that the run was started with; empty before the first run.
        run_id: ID of the run, stored before the run starts. If there is no record of the run, it never started.
        reason: Error that prevented the run from starting; empty if there was none.
    """

    values: Values
    digest: str = ""
    run_id: str = ""
    reason: str = ""


@dataclass(frozen=True)
class MatrixRecord:
    """The recorded state of a matrix.

    Attributes:
        sets: `--set` assignments that all combinations share.
        cluster: Name of the cluster on which the runs execute; empty before the first run.
        token: Token of `cluster`; empty until the cluster is running.
        made: Whether the matrix created the cluster and must therefore delete it.
        spent: Cost in USD of each cluster that the matrix created and deleted, by the cluster's token.
    """

    name: str
    recipe: str
    recipe_path: str
    target: str
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    sets: tuple[str, ...]
    created_at: datetime
    rows: tuple[MatrixRow, ...]
    cluster: str = ""
    token: str = ""
    made: bool = False
    spent: Mapping[str, Annotated[str, bounds.usd]] | None = None

    @property
    def simulated(self) -> bool:
        """True if the matrix runs on the rehearsal cloud."""
        return is_simulated(self.target)

    def with_row(self, row: MatrixRow) -> "MatrixRecord":
        """Return the matrix with the row of one combination replaced."""
        rows = tuple(row if old.values == row.values else old for old in self.rows)
        return replace(self, rows=rows)


MATRIX: Final = StateFile("matrix record", MatrixRecord)


class MatrixRecords:
    """Reads and writes the matrices of one state home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def matrix(self, name: str) -> MatrixRecord | None:
        """Return a matrix by name, or None if there is none with this name."""
        if not bounds.is_file_name(name):
            return None
        path = self._home.matrix(name).record
        try:
            return MATRIX.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as err:
            message = f"cannot read {path}: {err.strerror}"
            raise StateError(message, hint="make the file readable") from err
        except ValueError as err:
            message = f"the record {path} is damaged: {err}"
            raise StateError(message, hint="delete the file to start the matrix again; its runs are kept") from err

    def all(self) -> tuple[list[MatrixRecord], list[str]]:
        """Return every readable matrix, oldest first, and the names of unreadable matrices."""
        records: list[MatrixRecord] = []
        damaged: list[str] = []
        for path in documents_if_readable(self._home.matrices, "matrix.json"):
            try:
                record = self.matrix(path.parent.name)
            except StateError:
                damaged.append(path.parent.name)
            else:
                records += [record] if record is not None else []
        return sorted(records, key=lambda record: record.created_at), damaged

    def damage(self, name: str) -> str:
        """Return why a matrix's record cannot be read, with the path of the record; empty if it can be read."""
        try:
            self.matrix(name)
        except StateError as err:
            return err.message
        return ""

    def found(self, name: str) -> MatrixRecord:
        """Return the matrix with this name, or the latest readable matrix if the name is empty."""
        known = self.all()[0]
        record = self.matrix(name) if name else known[-1] if known else None
        if record is None:
            if not known:
                message = f"there is no matrix {name}: no matrix has been run" if name else "there is no matrix yet"
                raise UsageError(message, hint="run one: cloudgpu train RECIPE --matrix PARAMETER=VALUE,VALUE")
            near = suggestion(name, [record.name for record in known])
            raise UsageError(f"there is no matrix {name}{near}", hint="list matrices with `cloudgpu matrix list`")
        return record

    def save(self, record: MatrixRecord) -> MatrixRecord:
        """Write a matrix's record durably and return it."""
        MATRIX.write(self._home.matrix(record.name).record, record)
        return record
