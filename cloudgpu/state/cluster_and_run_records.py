"""Records of clusters and runs: one JSON file each, replaced atomically."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from cloudgpu import bounds, files
from cloudgpu.catalog.other_prices import ItemKind
from cloudgpu.decoding import AnyFloat
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home, unwritable_error
from cloudgpu.state.adapters import decode_stored
from cloudgpu.state.attached_storage import AttachedStorage
from cloudgpu.state.documents import StateFile, documents_if_readable, documents_in
from cloudgpu.targets import TARGETS, is_simulated
from cloudgpu.text import command

ClusterState = Literal["making", "up", "ending", "damaged"]
"""`damaged` is never written; it is the state of a record that cannot be read."""
RunState = Literal["preparing", "running", "succeeded", "failed", "cancelled", "lost", "not-run", "interrupted"]
FINAL_STATES: Final = frozenset({"succeeded", "failed", "cancelled", "lost", "not-run", "interrupted"})
"""Final states of a run."""
CLUSTER_DELETED: Final = "its cluster was deleted"
"""The reason recorded for a run that was cancelled because its cluster was deleted."""

_LEASE = "lease"
"""Prefix of the names of lease files."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class _CostRow:
    """A row of `ClusterRecord.beside`, as `CostItem.from_json` parses it."""

    kind: ItemKind
    count: int
    what: str
    usd: Annotated[str, bounds.usd] | None
    priced_on: date | None
    source: str
    per: Literal["hour", "once", "month"]
    whole_hours: bool


def _cost_row(row: Mapping[str, Any]) -> None:
    decode_stored(_CostRow, row)


def _optional_amount(text: str) -> None:
    if text:
        bounds.parse_decimal(text)


@dataclass(frozen=True)
class ClusterRecord:
    """The recorded state of a cluster. Token, expiry and run are set when the record is first written.

    Attributes:
        token: Unique token for the cluster's API calls; a later cluster with the same name has a different token.
        regions: Every region that was used, oldest first.
        made_by: `up`, or `train` for a cluster that is deleted with its run.
        run_id: The run for which `train` created the cluster; empty otherwise.
        engine: `direct` or `pulumi`; never changes.
        beside: Other billed resources of the cluster, in the form of `CostItem.as_json`.
        config: Configuration of the Pulumi program for the candidate that was tried last.
        storage: Storage that the cluster's nodes mount.
        max_usd: The recipe's `budget.max_usd`; empty if not set.
        first_expires_at: Expiry that the nodes were launched with; None if the expiry was never extended.
        confirmed_expires_at: Confirmed expiry of every node while an extension is in progress; None otherwise.
    """

    name: str
    token: str
    owner: str
    team: str
    recipe: str
    target: str
    account: str
    endpoint: str
    created_at: datetime
    expires_at: datetime
    made_by: str
    run_id: str = ""
    engine: str = "direct"
    state: ClusterState = "making"
    regions: tuple[str, ...] = ()
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    nodes: int = 0
    node_hourly_usd: Annotated[str, bounds.usd] = "0"
    beside: tuple[Annotated[Mapping[str, Any], _cost_row], ...] = ()
    gpu: str = ""
    gpus_per_node: int = 0
    image: str = ""
    image_parameter: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    instance_ids: tuple[str, ...] = ()
    updated_at: datetime | None = None
    storage: tuple[AttachedStorage, ...] = ()
    max_usd: Annotated[str, _optional_amount] = ""
    first_expires_at: datetime | None = None
    confirmed_expires_at: datetime | None = None

    @property
    def simulated(self) -> bool:
        """Return True if the cluster exists only in the rehearsal cloud."""
        return is_simulated(self.target)


@dataclass(frozen=True)
class RunRecord:
    """The recorded state of a run.

    Attributes:
        keep: Whether the cluster is kept regardless of the outcome.
        keep_on_failure: Whether the cluster is kept if the run fails.
        tried: One line for each candidate that had no capacity.
        ranks: Ranks by node index, written before the ranks are started. If not empty, the ranks may be running.
        image: Container image that the ranks run in, by digest; empty if the ranks run without a container.
        collected: Whether all outputs on the nodes were downloaded; None before the first attempt.
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
    image: str = ""
    ranks: Mapping[Annotated[str, bounds.parse_whole_number], tuple[int, ...]] = field(default_factory=dict)
    stages: tuple[tuple[str, float], ...] = ()
    metrics: Mapping[str, AnyFloat] = field(default_factory=dict)
    reason: str = ""
    failed_rank: int | None = None
    exit_code: int | None = None
    outputs: tuple[str, ...] = ()
    collected: bool | None = None
    ended_at: datetime | None = None

    @property
    def judged(self) -> bool:
        """Return True if the run's final state is known, even if its ledger rows are still open."""
        return self.state in FINAL_STATES

    @property
    def uncollected(self) -> tuple[str, ...]:
        """Return the run's output patterns if its ranks were started and not all outputs were downloaded."""
        # Records of earlier versions list only the downloaded files.
        fetched = bool(self.outputs) if self.collected is None else self.collected
        if fetched or not self.ranks:
            return ()
        return tuple(str(pattern) for pattern in self.resolved.get("outputs") or ())


CLUSTER: Final = StateFile("cluster record", ClusterRecord)
RUN: Final = StateFile("run record", RunRecord)


class RecordStore:
    """Reads and writes the records of one state home.

    Raises:
        StateError: A record cannot be read or written. Every method that handles a single record may raise this.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def cluster(self, name: str) -> ClusterRecord | None:
        """Return a cluster's record, or None."""
        return _read(self._home.cluster(name).record, CLUSTER) if bounds.is_file_name(name) else None

    def last_known(self, name: str) -> ClusterRecord | None:
        """Return a cluster's record, or a substitute if the record is damaged, for callers that must not fail."""
        return _readable(self._home.cluster(name).record) if bounds.is_file_name(name) else None

    def clusters(self) -> list[ClusterRecord]:
        """Return every cluster whose deletion is not confirmed, oldest first, including damaged records.

        Raises:
            StateError: The directory of clusters exists but cannot be read.
        """
        records = [_readable(path) for path in _cluster_paths(self._home)]
        return sorted((record for record in records if record), key=lambda record: record.created_at)

    def damage(self, name: str) -> str:
        """Return why a cluster's record cannot be read, with the path of the record; empty if it can be read."""
        return _damage(self._home.cluster(name).record, CLUSTER)

    def target(self, name: str) -> str:
        """Return the target of a cluster; empty if it has no record, or a record too damaged to name a known target.

        Raises:
            NewerFormatError: A newer version wrote the record, so that its target is unknown.
        """
        try:
            record = self.cluster(name)
        except NewerFormatError:
            raise
        except StateError:
            return _salvaged_target(self._home.cluster(name).record)
        return "" if record is None else record.target

    def save_cluster(self, record: ClusterRecord, now: datetime) -> ClusterRecord:
        """Write a cluster's record durably. Return the record with its new `updated_at`."""
        stamped = replace(record, updated_at=now)
        CLUSTER.write(self._home.cluster(record.name).record, stamped)
        return stamped

    def forget_cluster(self, name: str) -> None:
        """Remove the record and journals of a deleted cluster. The caller must hold the cluster's lease.

        The lease file stays, so that no other command can acquire the lease while the record is being removed.

        Raises:
            StateError: The state home cannot be written. The remaining files can be removed later.
        """
        paths = self._home.cluster(name)
        self.remove_cluster_files(name)
        try:
            # The record is removed last: as long as it exists, `down` can remove the remaining files.
            for path in (paths.inventory, paths.record):
                path.unlink(missing_ok=True)
        except OSError as err:
            raise unwritable_error(paths.record, err) from err

    def remove_cluster_files(self, name: str) -> None:
        """Remove the files of a cluster whose deletion is confirmed, except its record, inventory and lease.

        On self-managed hosts, the inventory determines which ledger rows to close.

        Raises:
            StateError: The state home cannot be written.
        """
        paths = self._home.cluster(name)
        try:
            for path in sorted(paths.root.glob("*")) if paths.root.is_dir() else ():
                if path not in (paths.record, paths.inventory) and path.is_file() and not path.name.startswith(_LEASE):
                    path.unlink(missing_ok=True)
        except OSError as err:
            raise unwritable_error(paths.root, err) from err

    def run(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or None."""
        return _read(self._home.run(run_id).record, RUN) if bounds.is_file_name(run_id) else None

    def runs(self) -> list[RunRecord]:
        """Return every run with a readable record, oldest first."""
        return sorted(self._read_runs()[0], key=lambda record: record.started_at)

    def damaged_runs(self) -> list[str]:
        """Return the IDs of runs with an unreadable record."""
        return self._read_runs()[1]

    def run_damage(self, run_id: str) -> str:
        """Return why a run's record cannot be read, with the path of the record; empty if it can be read."""
        return _damage(self._home.run(run_id).record, RUN)

    def save_run(self, record: RunRecord) -> RunRecord:
        """Write a run's record durably and return it."""
        RUN.write(self._home.run(record.run_id).record, record)
        return record

    def _read_runs(self) -> tuple[list[RunRecord], list[str]]:
        """Return the readable runs and the IDs of the unreadable ones, each sorted by ID."""
        records: list[RunRecord] = []
        damaged: list[str] = []
        for path in documents_if_readable(self._home.runs, "run.json"):
            try:
                record = _read(path, RUN)
            except StateError:
                damaged.append(path.parent.name)
            else:
                records += [record] if record is not None else []
        return records, damaged


def _cluster_paths(home: Home) -> list[Path]:
    """Return the paths of all cluster records. They may not exist.

    Raises:
        StateError: The directory of clusters exists but cannot be read.
    """
    try:
        return documents_in(home.clusters, "cluster.json")
    except OSError as err:
        message = f"cannot read {home.clusters}: {err.strerror}"
        hint = "set CLOUDGPU_HOME to a readable directory, or find clusters by their tags with `cloudgpu sweep`"
        raise StateError(message, hint=hint) from err


def _readable(path: Path) -> ClusterRecord | None:
    """Return a cluster's record, or a substitute for a damaged record."""
    try:
        return _read(path, CLUSTER)
    except StateError:
        return _damaged(path)


def _damage(path: Path, document: StateFile[_T]) -> str:
    try:
        _read(path, document)
    except StateError as err:
        return err.message
    return ""


def _damaged(path: Path) -> ClusterRecord:
    """Return a substitute record that contains only the name and the time of the last write."""
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        written = datetime.fromtimestamp(0, UTC)
    return ClusterRecord(
        name=path.parent.name,
        token="",
        owner="",
        team="",
        recipe="",
        target="",
        account="",
        endpoint="",
        created_at=written,
        expires_at=written,
        made_by="",
        state="damaged",
        updated_at=written,
    )


def _salvaged_target(path: Path) -> str:
    """Return the target that a damaged record names; empty if it names no known target.

    A deletion must search the cloud in which the cluster runs, whatever else is wrong with the record.
    """
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return ""
    target = content.get("target") if isinstance(content, dict) else None
    return target if isinstance(target, str) and target in TARGETS else ""


def _read(path: Path, document: StateFile[_T]) -> _T | None:
    try:
        return document.read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        message = f"cannot read {path}: {err.strerror}"
        raise StateError(message, hint=command("ls", "-l", str(path))) from err
    except ValueError as err:
        message = f"the record {path} is damaged: {err}"
        down = command("cloudgpu", "down", path.parent.name)
        hint = f"if this is a cluster's record, run `{down}`, which finds the cluster's resources by their tags"
        raise StateError(message, hint=hint) from err
