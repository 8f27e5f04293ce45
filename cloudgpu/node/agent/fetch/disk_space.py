"""Whether there is room for what is to be fetched, asked before the first byte comes."""

from __future__ import annotations

import os
from typing import Sequence

from ..errors import AgentError
from .request import RequestedFile

_GIB = float(1 << 30)


def check_disk_space(missing: Sequence[RequestedFile]) -> None:
    """Add up what is to come, for each file system.

    Raises:
        AgentError: It does not fit.
    """
    needed: dict[int, int] = {}
    places: dict[int, str] = {}
    for one in missing:
        place = _existing(os.path.dirname(one.path))
        device = os.stat(place).st_dev
        needed[device] = needed.get(device, 0) + one.size - _arrived(one)
        places.setdefault(device, place)
    for device, size in needed.items():
        room = os.statvfs(places[device])
        free = room.f_bavail * room.f_frsize
        if size > free:
            message = f"{places[device]}: the disk is full: {_gib(size)} are to come, {_gib(free)} are free"
            hint = "give the nodes a larger disk (`resources.disk`), or mount the data"
            raise AgentError(message, hint=hint, code="disk-full")


def _existing(folder: str) -> str:
    while folder != "/" and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _arrived(one: RequestedFile) -> int:
    """Blocks of a part that are on the disk already; a hole is none."""
    try:
        return min(os.stat(one.path + ".part").st_blocks * 512, one.size)
    except FileNotFoundError:
        return 0


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f} GiB"
