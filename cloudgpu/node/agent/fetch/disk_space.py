"""Check the free disk space before a download."""

from __future__ import annotations

import os
from typing import Sequence

from ..errors import AgentError
from .request import RequestedFile

_GIB = float(1 << 30)


def check_disk_space(missing: Sequence[RequestedFile]) -> None:
    """Check that each file system has enough free space for the bytes that are still missing."""
    needed: dict[int, int] = {}
    folders: dict[int, str] = {}
    for file in missing:
        folder = _existing(os.path.dirname(file.path))
        device = os.stat(folder).st_dev
        needed[device] = needed.get(device, 0) + file.size - _arrived(file)
        folders.setdefault(device, folder)
    for device, size in needed.items():
        stats = os.statvfs(folders[device])
        free = stats.f_bavail * stats.f_frsize
        if size > free:
            message = f"{folders[device]}: not enough free disk space: {_gib(size)} needed, {_gib(free)} free"
            hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
            raise AgentError(message, hint=hint, code="disk-full")


def _existing(folder: str) -> str:
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _arrived(file: RequestedFile) -> int:
    """Return the number of bytes that a partial file occupies on disk. Holes in the file do not count."""
    try:
        return min(os.stat(file.path + ".part").st_blocks * 512, file.size)
    except FileNotFoundError:
        return 0


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
