"""Read and write the records of clusters and runs: one JSON file each, replaced atomically."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cloudgpu import bounds, files
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home, unwritable_error
from cloudgpu.state.cluster_record import CLUSTER, ClusterIdentity, ClusterLifecycle, ClusterPlacement, ClusterRecord
from cloudgpu.state.documents import StateFile, documents_if_readable, documents_in
from cloudgpu.state.run_records import RUN, RunRecord
from cloudgpu.targets import find
from cloudgpu.text import command

_LEASE = "lease"
"""Prefix of the names of lease files."""
_T = TypeVar("_T")


class RecordStore:
    """Reads and writes the records of one state home.

    Raises:
        StateError: A record cannot be read or written. Any method may raise this, except those whose description says
            how they handle a damaged record.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def cluster(self, name: str) -> ClusterRecord | None:
        """Return a cluster's record, or None if there is none."""
        return _read(self._home.cluster(name).record, CLUSTER) if bounds.is_file_name(name) else None

    def last_known(self, name: str) -> ClusterRecord | None:
        """Return a cluster's record, a substitute if the record is damaged, or None if there is no record.

        Use this method where a damaged record must not cause an error.
        """
        return _readable(self._home.cluster(name).record) if bounds.is_file_name(name) else None

    def clusters(self) -> list[ClusterRecord]:
        """Return every cluster whose deletion is not confirmed, oldest first, with substitutes for damaged records."""
        records = [_readable(path) for path in _cluster_paths(self._home)]
        return sorted((record for record in records if record), key=lambda record: record.identity.created_at)

    def damage(self, name: str) -> str:
        """Return why a cluster's record cannot be read, with the path of the record; empty if it can be read."""
        return _damage(self._home.cluster(name).record, CLUSTER)

    def target(self, name: str) -> str:
        """Return a cluster's target; empty if there is no record, or if a damaged record contains no known target."""
        try:
            record = self.cluster(name)
        except NewerFormatError:
            raise
        except StateError:
            return _salvaged_target(self._home.cluster(name).record)
        return "" if record is None else record.identity.target

    def save_cluster(self, record: ClusterRecord, now: datetime) -> ClusterRecord:
        """Write a cluster's record durably. Return the record with its new `updated_at`."""
        stamped = replace(record, lifecycle=replace(record.lifecycle, updated_at=now))
        CLUSTER.write(self._home.cluster(record.name).record, stamped)
        return stamped

    def forget_cluster(self, name: str) -> None:
        """Remove all files of a deleted cluster except the lease file. The caller must hold the cluster's lease.

        The lease file is kept, so that no other command can acquire the lease while the record is being removed.
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

        The inventory is kept because, on self-managed hosts, it determines which ledger rows must be closed.
        """
        paths = self._home.cluster(name)
        try:
            for path in sorted(paths.root.glob("*")) if paths.root.is_dir() else ():
                if path not in (paths.record, paths.inventory) and path.is_file() and not path.name.startswith(_LEASE):
                    path.unlink(missing_ok=True)
        except OSError as err:
            raise unwritable_error(paths.root, err) from err

    def run(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or None if there is none."""
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
    """Return the paths of all cluster records. They may not exist."""
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
    identity = ClusterIdentity(
        name=path.parent.name,
        token="",
        owner="",
        team="",
        recipe="",
        target="",
        account="",
        endpoint="",
        created_at=written,
        made_by="",
    )
    lifecycle = ClusterLifecycle(expires_at=written, state="damaged", updated_at=written)
    return ClusterRecord(identity, ClusterPlacement(), lifecycle)


def _salvaged_target(path: Path) -> str:
    """Return the target in a damaged record; empty if the record contains no known target.

    `down` needs the target, because it must search the cloud in which the cluster runs even if the record is damaged.
    """
    try:
        content = files.read_json(path)
    except (OSError, ValueError):
        return ""
    target = content.get("target") if isinstance(content, dict) else None
    return target if isinstance(target, str) and find(target) else ""


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
