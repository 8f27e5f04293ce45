"""Download one large file in ranges over several connections, and hash it in order while later ranges arrive."""

from __future__ import annotations

import hashlib
import http.client
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Protocol, Sequence

from . import part as fetch_part
from .http import HttpConnections, TransientError, WrongRangeError
from .part import STEP, PartMap
from .progress import Progress
from .request import RequestedFile

LARGE = 2 * STEP
"""Minimum size, in bytes, of a file that is downloaded in ranges."""


class RangeDownloads(Protocol):
    """The subset of the `download.Downloads` interface that ranged downloads use."""

    web: HttpConnections
    progress: Progress

    def attempts(self, wanted: RequestedFile, once: Callable[[], None]) -> bool:
        """Retry until `once` succeeds. Return False if another download has failed."""

    def count(self, size: int) -> None:
        """Add to the number of bytes downloaded."""


class RangesUnsupportedError(Exception):
    """The server sends whole files only."""


def download_ranges(downloads: RangeDownloads, part: int, wanted: RequestedFile, pool: ThreadPoolExecutor) -> None:
    """Download the missing ranges and verify the file. If another download fails meanwhile, skip the verification."""
    part_map = PartMap(wanted)
    try:
        os.ftruncate(part, wanted.size)
        resumed = any(part_map.done)
        for number, done in enumerate(part_map.done):
            downloads.progress.at(f"{wanted.path} {number}", min(STEP, wanted.size - number * STEP) if done else 0)
        steps = [
            None if done else pool.submit(_step, downloads, part, wanted, part_map, number)
            for number, done in enumerate(part_map.done)
        ]
        try:
            digest = _digest(part, wanted, steps)
        finally:
            _settle(steps)
        if all(part_map.done):
            fetch_part.verify(part, wanted, wanted.size, digest, resumed=resumed)
    finally:
        part_map.close(drop=all(part_map.done))


def _digest(part: int, wanted: RequestedFile, steps: Sequence[Future[None] | None]) -> str:
    digest = hashlib.sha256()
    for number, step in enumerate(steps):
        if step is not None:
            step.result()
        if wanted.sha256 is not None:
            fetch_part.digest_range(part, number * STEP, min((number + 1) * STEP, wanted.size), digest)
    return digest.hexdigest()


def _settle(steps: Sequence[Future[None] | None]) -> None:
    """Cancel the steps that have not started, and wait until no thread writes to the part file."""
    for step in steps:
        if step is not None and not step.cancel():
            step.exception()


def _step(downloads: RangeDownloads, part: int, wanted: RequestedFile, part_map: PartMap, number: int) -> None:
    """Download one range. After a lost connection, resume where the download stopped."""
    first, end = number * STEP, min((number + 1) * STEP, wanted.size)
    have = first

    def fetch_rest() -> None:
        nonlocal have
        try:
            answer = downloads.web.get(wanted, have, end - 1)
        except WrongRangeError:
            raise RangesUnsupportedError from None
        if answer.status != http.client.PARTIAL_CONTENT:
            downloads.web.drop()
            raise RangesUnsupportedError
        for data in downloads.web.body(answer):
            chunk = data[: end - have]
            fetch_part.write_at(part, chunk, have)
            have += len(chunk)
            downloads.count(len(chunk))
            downloads.progress.at(f"{wanted.path} {number}", have - first)
            if len(chunk) < len(data):
                downloads.web.drop()  # the remaining data belongs to another step or exceeds the file
                break
        if have < end:
            downloads.web.drop()
            raise TransientError(f"only {have - first} of {end - first} bytes arrived")

    if downloads.attempts(wanted, fetch_rest):
        part_map.mark(number)
