"""The folders that stand for file systems, disks and buckets: one each, the same for every node of a cloud."""

import shutil
from pathlib import Path

from cloudgpu.rehearsal.nodes.mounts.shared_folders import Mounted

FOLDER = "shared"
"""Below the node host's own directory."""
READ_ONLY = "shared.ro"
"""The same folders; where nodes have namespaces, they see them here without the right to write."""
_FORMATTED = ".formatted"
_OPEN = 0o777


class SharedFiles:
    """All of one cloud."""

    def __init__(self, directory: Path) -> None:
        """Nothing is made yet.

        Args:
            directory: The node host's own.
        """
        self._folder = directory / FOLDER
        self._read_only = directory / READ_ONLY

    def formatted(self) -> frozenset[str]:
        """Disks that hold a file system."""
        marks = self._folder / _FORMATTED
        return frozenset(path.name for path in marks.iterdir()) if marks.is_dir() else frozenset()

    def format(self, folder: str) -> None:
        """Note that a disk holds a file system now.

        Raises:
            OSError: The disk of this machine is full.
        """
        (self._folder / _FORMATTED).mkdir(parents=True, exist_ok=True)
        (self._folder / _FORMATTED / folder).touch()

    def path(self, mounted: Mounted) -> str:
        """What a mount shows, made when it is first mounted.

        Raises:
            OSError: The disk of this machine is full.
        """
        there = self._folder / mounted.folder
        if not there.is_dir():
            there.mkdir(parents=True)
            there.chmod(_OPEN)
        return str((self._read_only if mounted.read_only else self._folder) / mounted.folder)


def prepare(directory: Path) -> tuple[Path, Path]:
    """Make both folders; returns the one that nodes write in, and the one that they only read.

    Raises:
        OSError: They cannot be made.
    """
    folder, read_only = directory / FOLDER, directory / READ_ONLY
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not read_only.is_symlink():
        # Only nodes without namespaces follow this link, and nothing keeps those from writing.
        read_only.symlink_to(FOLDER)
    return folder, read_only


def tidy(directory: Path, living: frozenset[str]) -> None:
    """Throw away what was held by storage that is no more."""
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
