"""Paths of the state home and of the data bundled with the package."""

import errno
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.files import FileRefusedError, create, make_private_directory

_PACKAGE = Path(__file__).resolve().parent


def bundled_folder(name: str) -> Path:
    """Return the path of the bundled `infra`, `recipes` or `images` folder.

    The folder is inside the installed package or, in a checkout, next to the package.
    """
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    message = f"the {name}/ folder is missing from this cloudgpu installation"
    raise StateError(message, hint="reinstall cloudgpu")


@dataclass(frozen=True)
class Home:
    """The state home. State homes share nothing: each has its own clusters, keys, ledger and rehearsal cloud."""

    root: Path

    @property
    def ledger_db(self) -> Path:
        """The SQLite ledger, unless the `ledger_url` setting selects another database."""
        return self.root / "ledger.sqlite3"

    @property
    def ssh_key(self) -> Path:
        """The private ed25519 key for SSH to nodes; the public key is the same path with `.pub` appended."""
        return self.root / "ssh" / "id_ed25519"

    @property
    def hosts(self) -> Path:
        """The inventory of self-managed hosts."""
        return self.root / "hosts.yaml"

    @property
    def service_key(self) -> Path:
        """The secret from which service tokens are derived; readable only by its owner."""
        return self.root / "service.key"

    @property
    def clusters(self) -> Path:
        """The directory that contains one directory per cluster."""
        return self.root / "clusters"

    def cluster(self, name: str) -> "ClusterPaths":
        """Return the paths of a cluster's files."""
        return ClusterPaths(self.clusters / name)

    @property
    def storages(self) -> Path:
        """The directory that contains one directory per storage resource."""
        return self.root / "storage"

    def storage(self, name: str) -> "StoragePaths":
        """Return the paths of a storage resource's files."""
        return StoragePaths(self.storages / name)

    @property
    def runs(self) -> Path:
        """The directory that contains one directory per run. `down` does not delete run directories."""
        return self.root / "runs"

    def run(self, run_id: str) -> "RunPaths":
        """Return the paths of a run's files."""
        return RunPaths(self.runs / run_id)

    @property
    def matrices(self) -> Path:
        """The directory that contains one directory per run matrix."""
        return self.root / "matrices"

    def matrix(self, name: str) -> "MatrixPaths":
        """Return the paths of a run matrix's files."""
        return MatrixPaths(self.matrices / name)

    @property
    def rehearsal(self) -> Path:
        """The directory for the files of this state home's rehearsal cloud."""
        return self.root / "rehearsal"

    @property
    def pulumi(self) -> Path:
        """The directory for the Pulumi engine's files, and for the Pulumi CLI if cloudgpu installed it."""
        return self.root / "pulumi"

    @property
    def envs(self) -> Path:
        """The directory for the Python environments that rehearsal nodes share, one per set of requirements."""
        return self.root / "envs"

    @property
    def cooldowns(self) -> Path:
        """The list of launch candidates that recently had no capacity."""
        return self.root / "cooldowns.json"

    def catalog(self, target: str) -> "CatalogPaths":
        """Return the paths of a target's instance types, prices and quotas. Each target has its own directory."""
        return CatalogPaths(self.root / "catalog" / target)

    @property
    def debug_log(self) -> Path:
        """The log written when `--debug` is set."""
        return self.root / "debug.log"

    def ensure(self) -> "Home":
        """Create the state home, readable only by its owner, and verify that it is writable."""
        ensure_writable(self.root, 4096)
        return self


@dataclass(frozen=True)
class ClusterPaths:
    """The files of one cluster."""

    root: Path

    @property
    def record(self) -> Path:
        """The cluster's record: owner, token, expiry, account, regions, nodes; written before any resource exists."""
        return self.root / "cluster.json"

    def journal(self, region: str) -> Path:
        """Return the path of the engine's journal for one region."""
        return self.root / f"{region}.journal"

    @property
    def inventory(self) -> Path:
        """The last known state of the nodes."""
        return self.root / "inventory.json"

    @property
    def lease(self) -> Path:
        """The lease file of the process that is changing the cluster."""
        return self.root / "lease"

    @property
    def ssh_config(self) -> Path:
        """The file that records the directory to which `ssh-config` wrote the cluster's OpenSSH entries."""
        return self.root / "ssh-config.json"


@dataclass(frozen=True)
class CatalogPaths:
    """The catalog snapshots and quotas of one target."""

    root: Path

    @property
    def index(self) -> Path:
        """The index, which lists all refreshes and selects the active snapshot."""
        return self.root / "index.json"

    def snapshot(self, number: int) -> Path:
        """Return the path of a catalog snapshot, which never changes after it is written."""
        return self.root / f"overlay-{number:04d}.json"

    @property
    def lock(self) -> Path:
        """The lock that a process holds while it changes the index."""
        return self.root / "lock"

    @property
    def quotas(self) -> Path:
        """The cached quotas and usage. The file can be deleted at any time."""
        return self.root / "quotas.json"


@dataclass(frozen=True)
class StoragePaths:
    """The files of one storage resource."""

    root: Path

    @property
    def record(self) -> Path:
        """The storage's record: name, kind, owner, token, account and settings; written before any resource exists."""
        return self.root / "storage.json"

    @property
    def lease(self) -> Path:
        """The lease file of the process that is using the storage resource."""
        return self.root / "lease"

    def journal(self, region: str) -> Path:
        """Return the path of the engine's journal for one region."""
        return self.root / f"{region}.journal"


@dataclass(frozen=True)
class RunPaths:
    """The files of one run on the machine that runs cloudgpu."""

    root: Path

    @property
    def record(self) -> Path:
        """The run's recipe, cluster, state, stages and metrics."""
        return self.root / "run.json"

    @property
    def logs(self) -> Path:
        """The directory that contains `rank-N.log` and `rank-N.times` for every rank."""
        return self.root / "logs"

    def log(self, rank: int) -> Path:
        """Return the path of one rank's log."""
        return self.logs / f"rank-{rank}.log"

    def log_times(self, rank: int) -> Path:
        """Return the path of the file that says when the bytes of one rank's log were written."""
        return self.logs / f"rank-{rank}.times"

    @property
    def outputs(self) -> Path:
        """The directory for the run's downloaded outputs."""
        return self.root / "outputs"


@dataclass(frozen=True)
class MatrixPaths:
    """The files of one matrix of runs."""

    root: Path

    @property
    def record(self) -> Path:
        """The matrix's axes and cluster, and each combination's run ID, which is written before the run starts."""
        return self.root / "matrix.json"

    @property
    def table(self) -> Path:
        """The results of the runs, as CSV."""
        return self.root / "results.csv"

    @property
    def lease(self) -> Path:
        """The lease file of the process that is running the matrix."""
        return self.root / "lease"


def ensure_writable(directory: Path, size: int) -> None:
    """Create a directory, readable only by its owner, and verify that `size` bytes can be written there."""
    probe = directory / f".writable.{os.getpid()}"
    try:
        make_private_directory(directory)
        try:
            create(probe, b"x" * size, durable=False)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as err:
        raise unwritable_error(directory, err) from err


def unwritable_error(path: Path, err: OSError) -> StateError:
    """Return the error to raise when reading or writing `path` failed, with a hint for the most common causes."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return StateError(
            f"no space left on the disk that holds {path}",
            hint="free some space, or point CLOUDGPU_HOME at another disk",
        )
    if isinstance(err, FileExistsError) and path.is_symlink():
        return StateError(
            f"cannot write to {path}: it is a symlink to {path.readlink()}, which does not exist",
            hint="mount the disk, create the directory that the symlink points to, or remove the symlink "
            f"{shlex.quote(str(path))}",
        )
    if isinstance(err, FileRefusedError):
        return StateError(
            f"cannot use {path}: {err.strerror}",
            hint=f"rename or remove {shlex.quote(str(path))}, then run the command again",
        )
    return StateError(
        f"cannot write to {path}: {err.strerror}",
        hint="set CLOUDGPU_HOME to a directory you can write to",
    )
