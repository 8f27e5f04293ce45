"""One large file over several connections at once, read for its checksum in order while later steps still come."""

from __future__ import annotations

import hashlib
import http.client
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Protocol, Sequence

from . import part as fetch_part
from .http import Passing, Web, WrongRange
from .part import STEP, PartMap
from .request import Wanted

LARGE = 2 * STEP
"""From this size on a file is fetched in ranges."""


class Downloads(Protocol):
    """What fetching in ranges needs of the download that it is part of."""

    web: Web

    def attempts(self, wanted: Wanted, once: Callable[[], None]) -> bool:
        """Try until it works, or return False because another file has failed for good."""

    def count(self, size: int) -> None:
        """Add to the bytes that have come."""


class NoRanges(Exception):  # noqa: N818 - no error: the file is fetched another way
    """The server sends whole files only."""


def bring_ranges(downloads: Downloads, part: int, wanted: Wanted, pool: ThreadPoolExecutor) -> None:
    """Fetch the steps that are missing, and verify the whole.

    Raises:
        Passing: Try again.
        NoRanges: The server sends whole files only.
        AgentError: Trying again is useless.
    """
    arrived = PartMap(wanted)
    try:
        os.ftruncate(part, wanted.size)
        resumed = any(arrived.done)
        steps = [
            None if done else pool.submit(_step, downloads, part, wanted, arrived, number)
            for number, done in enumerate(arrived.done)
        ]
        try:
            digest = _digest(part, wanted, steps)
        finally:
            _settle(steps)
        if all(arrived.done):
            fetch_part.verify(part, wanted, wanted.size, digest, resumed=resumed)
    finally:
        arrived.close(drop=all(arrived.done))


def _digest(part: int, wanted: Wanted, steps: Sequence[Future[None] | None]) -> str:
    digest = hashlib.sha256()
    for number, step in enumerate(steps):
        if step is not None:
            step.result()
        if wanted.sha256 is not None:
            fetch_part.digest_range(part, number * STEP, min((number + 1) * STEP, wanted.size), digest)
    return digest.hexdigest()


def _settle(steps: Sequence[Future[None] | None]) -> None:
    """Nobody writes to the part any more after this."""
    for step in steps:
        if step is not None and not step.cancel():
            step.exception()


def _step(downloads: Downloads, part: int, wanted: Wanted, arrived: PartMap, number: int) -> None:
    """One range; where its connection breaks it goes on from there."""
    first, end = number * STEP, min((number + 1) * STEP, wanted.size)
    have = first

    def go_on() -> None:
        nonlocal have
        try:
            answer = downloads.web.get(wanted, have, end - 1)
        except WrongRange:
            raise NoRanges from None
        if answer.status != http.client.PARTIAL_CONTENT:
            downloads.web.drop()
            raise NoRanges
        for data in downloads.web.body(answer):
            piece = data[: end - have]
            fetch_part.write_at(part, piece, have)
            have += len(piece)
            downloads.count(len(piece))
            if len(piece) < len(data):
                downloads.web.drop()  # what follows belongs to another step, or to nothing
                break
        if have < end:
            downloads.web.drop()
            raise Passing(f"only {have - first} of {end - first} bytes came")

    if downloads.attempts(wanted, go_on):
        arrived.mark(number)
