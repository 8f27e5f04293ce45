"""What this home knows about clusters and runs: one JSON file each, replaced atomically, read leniently."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from cloudgpu.errors import StateError
from cloudgpu.paths import Home, unwritable

ClusterState = Literal["making", "up", "ending"]
RunState = Literal["preparing", "running", "succeeded", "failed", "cancelled", "lost", "not-run", "interrupted"]
_T = TypeVar("_T", "ClusterRecord", "RunRecord")


@dataclass(frozen=True)
class ClusterRecord:
    """One cluster. Token, expiry and run are fixed when it is first written and only ever read back.

    Attributes:
        token: Names this cluster's calls; a second cluster of the same name has another.
        regions: Every region that was touched, oldest first.
        made_by: `up`, or `train` for a cluster that ends with its run.
        run_id: The run that a `train` made it for; empty otherwise.
        config: The program's settings of the candidate that was tried last.
        secret_config: Names in `config` whose values are not kept.
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
    state: ClusterState = "making"
    regions: tuple[str, ...] = ()
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: str = ""
    nodes: int = 0
    node_hourly_usd: str = "0"
    gpu: str = ""
    gpus_per_node: int = 0
    image: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    instance_ids: tuple[str, ...] = ()
    updated_at: datetime | None = None

    @property
    def simulated(self) -> bool:
        """Whether it costs nothing."""
        return self.target == "rehearsal"


@dataclass(frozen=True)
class RunRecord:
    """One run, as far as its caller has seen it."""

    run_id: str
    cluster: str
    recipe: str
    recipe_path: str
    owner: str
    team: str
    target: str
    started_at: datetime
    state: RunState = "preparing"
    ends_cluster: bool = False
    resolved: Mapping[str, Any] = field(default_factory=dict)
    recipe_digest: str = ""
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stages: tuple[tuple[str, float], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    failed_rank: int | None = None
    exit_code: int | None = None
    outputs: tuple[str, ...] = ()
    ended_at: datetime | None = None


class Records:
    """Reads and writes the records of one home.

    Raises:
        StateError: From every method: a record cannot be read or written.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def cluster(self, name: str) -> ClusterRecord | None:
        """A cluster's record, or None."""
        return _read(self._home.cluster(name).record, ClusterRecord)

    def clusters(self) -> list[ClusterRecord]:
        """Every cluster that has not been confirmed gone, oldest first."""
        found = [_read(path, ClusterRecord) for path in self._home.clusters.glob("*/cluster.json")]
        return sorted((record for record in found if record), key=lambda record: record.created_at)

    def save_cluster(self, record: ClusterRecord, now: datetime) -> ClusterRecord:
        """Write it, durably, and return it with its new age."""
        stamped = replace(record, updated_at=now)
        _write(self._home.cluster(record.name).record, stamped)
        return stamped

    def forget_cluster(self, name: str) -> None:
        """Remove a cluster whose end is confirmed; its journals go with it."""
        root = self._home.cluster(name).root
        record = self._home.cluster(name).record
        # The record goes last: as long as it is there, `down` comes back to the rest.
        for path in sorted(root.glob("*")) if root.is_dir() else ():
            if path != record and path.is_file():
                path.unlink(missing_ok=True)
        record.unlink(missing_ok=True)

    def run(self, run_id: str) -> RunRecord | None:
        """A run's record, or None."""
        return _read(self._home.run(run_id).record, RunRecord)

    def runs(self) -> list[RunRecord]:
        """Every run, oldest first."""
        found = [_read(path, RunRecord) for path in self._home.runs.glob("*/run.json")]
        return sorted((record for record in found if record), key=lambda record: record.started_at)

    def save_run(self, record: RunRecord) -> RunRecord:
        """Write it, durably."""
        _write(self._home.run(record.run_id).record, record)
        return record


def write_durably(path: Path, text: str) -> None:
    """Replace a file so that a reader, or a reader after a power loss, sees the old or the new one whole.

    Raises:
        StateError: The disk is full, or the home cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as err:
        beside.unlink(missing_ok=True)
        raise unwritable(path, err) from err


def _write(path: Path, record: "ClusterRecord | RunRecord") -> None:
    write_durably(path, json.dumps(asdict(record), default=_plain, indent=1) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    message = f"{type(value).__name__} has no place in a record"
    raise TypeError(message)


def _read(path: Path, kind: type[_T]) -> _T | None:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return kind(**{name: _back(name, stored[name]) for name in (f.name for f in fields(kind)) if name in stored})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        message = f"cannot read {path}: {err.strerror}"
        raise StateError(message) from err
    except (ValueError, TypeError, KeyError) as err:
        message = f"the record {path} is damaged: {err}"
        hint = f"`cloudgpu down {path.parent.name}` still finds the cluster by its tags"
        raise StateError(message, hint=hint) from err


def _back(name: str, value: Any) -> Any:  # noqa: ANN401
    if name.endswith("_at") and isinstance(value, str):
        return datetime.fromisoformat(value)
    if name == "stages":
        return tuple((str(stage), float(seconds)) for stage, seconds in value)
    if name == "ranks":
        return {node: tuple(ranks) for node, ranks in value.items()}
    return tuple(value) if isinstance(value, list) else value
