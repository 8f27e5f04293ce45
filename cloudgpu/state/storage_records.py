"""Records of storage, written before the first API call for it, and the storage in a cluster's record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from cloudgpu import bounds
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home, unwritable_error
from cloudgpu.state.documents import StateFile, documents_if_readable
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

if TYPE_CHECKING:
    # Importing the recipe schema would slow down commands that only read records.
    from cloudgpu.recipe.schema import Recipe, Storage


_LONGEST = 30
"""Maximum length of the recipe's storage name in a generated name, which also has a dash and an 8-character hash."""
_SHOWN: Final = {
    "id": "id",
    "zone": "zone",
    "address": "address",
    "mountName": "mount_name",
    "securityGroupId": "security_group_id",
    "url": "url",
}
"""Output of the Pulumi program -> key in JSON documents."""
StorageState = Literal["making", "ready", "deleting"]


@dataclass(frozen=True)
class AttachedStorage:
    """Storage that a cluster's nodes mount.

    Attributes:
        name: Name of the storage in `cloudgpu storage`.
        called: Name of the storage in the recipe.
        zone: Availability zone; empty for kinds of storage that are not zonal.
        to: Path at which the nodes mount the storage.
        ends: Whether the storage is deleted with the cluster. True for disposable storage and, until the cluster is
            running, for all storage created for the cluster.
        id: ID of the file system, volume or bucket; empty until known.
    """

    name: str
    called: str
    kind: str
    region: str
    zone: str
    to: str
    mode: str
    ends: bool
    id: str = ""

    @property
    def shared(self) -> bool:
        """Whether the storage outlives clusters and may be mounted by several, so that it keeps its recipe's name."""
        return self.name == self.called


def unique_name(storage: Storage, token: str) -> str:
    """Return the name to use for a recipe's storage.

    Storage that is deleted with its cluster gets a unique name, derived from its name in the recipe and the cluster's
    token. All other storage keeps its name in the recipe.
    """
    if storage.make is None or storage.keep:
        return storage.name
    return f"{storage.name[:_LONGEST].rstrip('-')}-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def missing_storage(recipe: Recipe, storage: tuple[AttachedStorage, ...]) -> list[str]:
    """Return the names of the recipe's storage that is not in `storage` with the same mount path and mode."""
    mounts = {(mounted.called, mounted.to, mounted.mode) for mounted in storage}
    return [storage.name for storage in recipe.storage if (storage.name, str(storage.to), storage.mode) not in mounts]


@dataclass(frozen=True)
class StorageRecord:
    """The recorded state of a file system, volume or bucket.

    Attributes:
        token: Unique token for the storage's API calls and tags. It never changes.
        disposable: Whether the data may be deleted without confirmation.
        engine: `direct` or `pulumi`; never changes.
        config: Configuration of the Pulumi program.
        outputs: Outputs of the Pulumi program, such as the ID, address and mount name.
    """

    name: str
    kind: str
    token: str
    owner: str
    team: str
    target: str
    account: str
    endpoint: str
    region: str
    created_at: datetime
    disposable: bool
    state: StorageState = "making"
    made_for: str = ""
    """Cluster that the storage was created for and is deleted with; empty for storage created with `storage create`."""
    engine: str = "direct"
    config: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """True if the storage exists only in the rehearsal cloud."""
        return is_simulated(self.target)

    @property
    def access_details(self) -> dict[str, Any]:
        """The access details by JSON key. Details that do not apply to this kind of storage are None."""
        return {shown: self.outputs.get(key) for key, shown in _SHOWN.items()}


STORAGE: Final = StateFile("storage record", StorageRecord)


class StorageRecords:
    """Reads and writes the storage records of one state home."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def get_if_readable(self, name: str, report: Callable[[str], None]) -> StorageRecord | None:
        """Return a record, or report a damaged one and return None, for callers that then search by tag."""
        try:
            return self.get(name)
        except NewerFormatError:
            raise
        except StateError as err:
            report(f"{err.message}; searching by tag instead")
            return None

    def get(self, name: str) -> StorageRecord | None:
        """Return a record by name, or None if there is none with this name."""
        if not bounds.is_file_name(name):
            return None
        path = self._home.storage(name).record
        try:
            return STORAGE.read(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as err:
            message = f"the record {path} cannot be read: {err}"
            delete = command("cloudgpu", "storage", "delete", name)
            raise StateError(message, hint=f"delete the storage with `{delete}`, which finds it by its tags") from err

    def all(self) -> list[StorageRecord]:
        """Return every readable record, sorted by name. Storage whose record is unreadable can be found by its tags."""
        return self._read_all()[0]

    def damaged(self) -> dict[str, str]:
        """Return a message for each unreadable record, by storage name. Each message contains the record's path."""
        return self._read_all()[1]

    def _read_all(self) -> tuple[list[StorageRecord], dict[str, str]]:
        records: list[StorageRecord] = []
        damaged: dict[str, str] = {}
        for path in documents_if_readable(self._home.storages, "storage.json"):
            try:
                records.append(STORAGE.read(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except NewerFormatError as err:
                damaged[path.parent.name] = err.message
            except (OSError, ValueError) as err:
                damaged[path.parent.name] = f"the record {path} is damaged: {err}"
        return records, damaged

    def save(self, record: StorageRecord, **changes: Any) -> StorageRecord:  # noqa: ANN401 - fields of the record
        """Write a record durably with these fields changed, and return the changed record."""
        changed = replace(record, **changes)
        STORAGE.write(self._home.storage(record.name).record, changed)
        return changed

    def forget(self, name: str) -> None:
        """Remove the journals and then the record of storage whose deletion is confirmed. The lease file stays."""
        paths = self._home.storage(name)
        try:
            for path in (*sorted(paths.root.glob("*.journal")), paths.record):
                path.unlink(missing_ok=True)
        except OSError as err:
            raise unwritable_error(paths.record, err) from err
