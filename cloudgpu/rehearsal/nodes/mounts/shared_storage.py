"""The folders that back file systems, volumes and buckets; shared by all nodes of a cloud."""

import shutil
from pathlib import Path

from cloudgpu.rehearsal.nodes.mounts.shared_folders import Mounted

FOLDER = "shared"
"""Folder below the node host's directory."""
READ_ONLY = "shared.ro"
"""Where nodes with namespaces see the same folders read-only."""
_FORMATTED = ".formatted"
_OPEN = 0o777


class SharedFolderStore:
    """The shared folders of one cloud."""

    def __init__(self, directory: Path) -> None:
        """Create nothing yet.

        Args:
            directory: The node host's own.
        """
        self._folder = directory / FOLDER
        self._read_only = directory / READ_ONLY

    def formatted(self) -> frozenset[str]:
        """Return the volumes that are formatted."""
        marks = self._folder / _FORMATTED
        return frozenset(path.name for path in marks.iterdir()) if marks.is_dir() else frozenset()

    def format(self, folder: str) -> None:
        """Record that a volume is formatted.

        Raises:
            OSError: The disk of this machine is full.
        """
        (self._folder / _FORMATTED).mkdir(parents=True, exist_ok=True)
        (self._folder / _FORMATTED / folder).touch()

    def path(self, mounted: Mounted) -> str:
        """Return the folder of a mount, creating it at the first mount.

        Raises:
            OSError: The disk of this machine is full.
        """
        there = self._folder / mounted.folder
        if not there.is_dir():
            there.mkdir(parents=True)
            there.chmod(_OPEN)
        return str((self._read_only if mounted.read_only else self._folder) / mounted.folder)


def prepare(directory: Path) -> tuple[Path, Path]:
    """Create both folders. Return the writable one and the read-only one.

    Raises:
        OSError: A folder cannot be created.
    """
    folder, read_only = directory / FOLDER, directory / READ_ONLY
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not read_only.is_symlink():
        # Only nodes without namespaces follow this link; nothing prevents them from writing.
        read_only.symlink_to(FOLDER)
    return folder, read_only


def tidy(directory: Path, living: frozenset[str]) -> None:
    """Delete the folders of storage that no longer exists."""
    folder = directory / FOLDER
    for place in (folder, folder / _FORMATTED):
        for path in place.iterdir() if place.is_dir() else ():
            if path.name != _FORMATTED and path.name not in living:
                _throw_away(path)


def _throw_away(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
