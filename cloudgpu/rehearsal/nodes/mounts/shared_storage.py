"""The directories that back file systems, volumes and buckets. All nodes of a cloud share them."""

import shutil
from pathlib import Path

from cloudgpu.rehearsal.nodes.mounts.shared_folders import Mounted

FOLDER = "shared"
"""Path of the shared directory, relative to the node host's directory."""
READ_ONLY = "shared.ro"
"""Path at which nodes with namespaces see the same files read-only, relative to the node host's directory."""
_FORMATTED = ".formatted"
_OPEN = 0o777


class SharedFolderStore:
    """The shared directories of one rehearsal cloud."""

    def __init__(self, directory: Path) -> None:
        """Create the store without creating directories.

        Args:
            directory: Directory of the node host.
        """
        self._folder = directory / FOLDER
        self._read_only = directory / READ_ONLY

    def formatted(self) -> frozenset[str]:
        """Return the names of the directories that back formatted volumes."""
        marks = self._folder / _FORMATTED
        return frozenset(path.name for path in marks.iterdir()) if marks.is_dir() else frozenset()

    def format(self, folder: str) -> None:
        """Record that a volume is formatted."""
        (self._folder / _FORMATTED).mkdir(parents=True, exist_ok=True)
        (self._folder / _FORMATTED / folder).touch()

    def path(self, mounted: Mounted) -> str:
        """Return the path of the directory that backs a mount, and create the directory if it does not exist."""
        folder = self._folder / mounted.folder
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(_OPEN)
        return str((self._read_only if mounted.read_only else self._folder) / mounted.folder)


def create_shared_folder(directory: Path) -> tuple[Path, Path]:
    """Create the shared directory. Return its path and the path of its read-only view."""
    folder, read_only = directory / FOLDER, directory / READ_ONLY
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not read_only.is_symlink():
        # Only nodes without namespaces follow this symlink. For them, the view is not actually read-only.
        read_only.symlink_to(FOLDER)
    return folder, read_only


def delete_orphaned_folders(directory: Path, existing: frozenset[str]) -> None:
    """Delete the backing directories of storage resources that no longer exist."""
    folder = directory / FOLDER
    for parent in (folder, folder / _FORMATTED):
        for path in parent.iterdir() if parent.is_dir() else ():
            if path.name != _FORMATTED and path.name not in existing:
                _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
