"""Who owns which file name: the state home, and the data that travels with the package."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import StateError
from cloudgpu.files import FileRefusedError, create

_PACKAGE = Path(__file__).resolve().parent


def bundled(name: str) -> Path:
    """Where `infra`, `recipes` or `images` lie: inside the installed package, or beside it in a checkout.

    Raises:
        StateError: The installation lacks that folder.
    """
    for candidate in (_PACKAGE / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    message = f"this installation of cloudgpu has no {name}/ folder"
    raise StateError(message, hint="reinstall cloudgpu")


@dataclass(frozen=True)
class Home:
    """The state home. Two homes never see each other's clusters, keys, ledger or rehearsal cloud."""

    root: Path

    @property
    def ledger_db(self) -> Path:
        """The SQLite ledger, unless settings name another store."""
        return self.root / "ledger.sqlite3"

    @property
    def ssh_key(self) -> Path:
        """The private ed25519 key that nodes are reached with; `.pub` lies beside it."""
        return self.root / "ssh" / "id_ed25519"

    @property
    def hosts(self) -> Path:
        """The inventory of hosts of one's own."""
        return self.root / "hosts.yaml"

    @property
    def service_key(self) -> Path:
        """What the tokens of services are made of; private to its owner."""
        return self.root / "service.key"

    @property
    def clusters(self) -> Path:
        """One folder a cluster."""
        return self.root / "clusters"

    def cluster(self, name: str) -> "ClusterPaths":
        """The files of one cluster."""
        return ClusterPaths(self.clusters / name)

    @property
    def storages(self) -> Path:
        """One folder a piece of storage that outlives clusters."""
        return self.root / "storage"

    def storage(self, name: str) -> "StoragePaths":
        """The files of one piece of storage."""
        return StoragePaths(self.storages / name)

    @property
    def runs(self) -> Path:
        """One folder a run; stays after `down`."""
        return self.root / "runs"

    def run(self, run_id: str) -> "RunPaths":
        """The files of one run."""
        return RunPaths(self.runs / run_id)

    @property
    def matrices(self) -> Path:
        """One folder a matrix of runs."""
        return self.root / "matrices"

    def matrix(self, name: str) -> "MatrixPaths":
        """The files of one matrix."""
        return MatrixPaths(self.matrices / name)

    @property
    def rehearsal(self) -> Path:
        """Everything of this home's rehearsal cloud."""
        return self.root / "rehearsal"

    @property
    def pulumi(self) -> Path:
        """All files of the pulumi engine, and the CLI when it was installed by us."""
        return self.root / "pulumi"

    @property
    def envs(self) -> Path:
        """Python environments that rehearsal nodes share, one a requirement set."""
        return self.root / "envs"

    @property
    def cooldowns(self) -> Path:
        """Where there was no capacity a moment ago."""
        return self.root / "cooldowns.json"

    def catalog(self, target: str) -> "CatalogPaths":
        """What was read of a target's types, prices and quotas; one target never sees another's."""
        return CatalogPaths(self.root / "catalog" / target)

    @property
    def debug_log(self) -> Path:
        """What `--debug` writes."""
        return self.root / "debug.log"

    def ensure(self) -> "Home":
        """Create the home, private to its owner, and prove that it can be written.

        Raises:
            StateError: It cannot be created or written, or the disk is full.
        """
        ensure_writable(self.root, 4096)
        return self


@dataclass(frozen=True)
class ClusterPaths:
    """The files of one cluster."""

    root: Path

    @property
    def record(self) -> Path:
        """Name, owner, token, expiry, account, endpoint, regions, plan: written before the first call."""
        return self.root / "cluster.json"

    def journal(self, region: str) -> Path:
        """The engine's journal for one region."""
        return self.root / f"{region}.journal"

    @property
    def inventory(self) -> Path:
        """The nodes as last seen."""
        return self.root / "inventory.json"


@dataclass(frozen=True)
class CatalogPaths:
    """The files of what was read from one target."""

    root: Path

    @property
    def index(self) -> Path:
        """Every refresh, and which overlay holds."""
        return self.root / "index.json"

    def overlay(self, number: int) -> Path:
        """One overlay; never changed once it is written."""
        return self.root / f"overlay-{number:04d}.json"

    @property
    def lock(self) -> Path:
        """Held by whoever changes the index."""
        return self.root / "lock"

    @property
    def quotas(self) -> Path:
        """Quotas as last read, and what ran then; may be deleted."""
        return self.root / "quotas.json"


@dataclass(frozen=True)
class StoragePaths:
    """The files of one piece of storage."""

    root: Path

    @property
    def record(self) -> Path:
        """Name, kind, owner, token, account, settings: written before the first call."""
        return self.root / "storage.json"

    @property
    def lease(self) -> Path:
        """Who works on it."""
        return self.root / "lease"

    def journal(self, region: str) -> Path:
        """The engine's journal."""
        return self.root / f"{region}.journal"


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, on the caller's machine."""

    root: Path

    @property
    def record(self) -> Path:
        """Recipe, cluster, state, stages, metrics."""
        return self.root / "run.json"

    @property
    def logs(self) -> Path:
        """`rank-N.log` for every rank."""
        return self.root / "logs"

    def log(self, rank: int) -> Path:
        """The log of one rank."""
        return self.logs / f"rank-{rank}.log"

    @property
    def outputs(self) -> Path:
        """What the recipe asked to bring back."""
        return self.root / "outputs"


@dataclass(frozen=True)
class MatrixPaths:
    """The files of one matrix of runs."""

    root: Path

    @property
    def record(self) -> Path:
        """Its axes, its cluster, and the run of each combination: written before the run is started."""
        return self.root / "matrix.json"

    @property
    def table(self) -> Path:
        """What the runs reached, as CSV."""
        return self.root / "results.csv"

    @property
    def lease(self) -> Path:
        """Who works on it."""
        return self.root / "lease"


def ensure_writable(directory: Path, size: int) -> None:
    """Create a directory, private to its owner, and prove that this many bytes can be written there.

    Raises:
        StateError: It cannot be created or written, or the disk is full.
    """
    probe = directory / f".writable.{os.getpid()}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            create(probe, b"x" * size, durable=False)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as err:
        raise unwritable(directory, err) from err


def unwritable(path: Path, err: OSError) -> StateError:
    """The error that a full disk or a missing permission under `path` ends with."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return StateError(
            f"no space left on the disk that holds {path}",
            hint="free some space, or point CLOUDGPU_HOME at another disk",
        )
    if isinstance(err, FileExistsError) and path.is_symlink():
        return StateError(
            f"cannot write to {path}: it is a link to {path.readlink()}, which is not there",
            hint=f"mount the disk or create the directory that it leads to, or remove the link {path}",
        )
    if isinstance(err, FileRefusedError):
        return StateError(f"cannot use {path}: {err.strerror}", hint="move it away, then run the command again")
    return StateError(
        f"cannot write to {path}: {err.strerror}",
        hint="set CLOUDGPU_HOME to a directory you can write to",
    )
