"""Frames of a recording, and how long each is shown."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple


class Run(NamedTuple):
    """Adjacent characters of one style."""

    column: int
    text: str
    style: str = ""


_TIME = re.compile(r"(?:\d[\d.]* (?:h|min|s)\b ?)+")

Line = tuple[Run, ...]
"""One row of the screen, without trailing blanks."""
Rows = tuple[Line, ...]


class Frame(NamedTuple):
    """What is on the screen from a point in time on."""

    at_s: float
    rows: Rows


def text_of(rows: Rows) -> str:
    """Return the text of a screen."""
    lines = []
    for line in rows:
        text = ""
        for run in line:
            text = text.ljust(run.column) + run.text
        lines.append(text.rstrip())
    return "\n".join(lines).rstrip()


def merge_frames(frames: Iterable[Frame], interval_s: float) -> list[Frame]:
    """Return frames that differ from their predecessor and are at least an interval apart.

    Of the frames within an interval, the last one is kept, so that the last state of the screen is never lost.
    """
    kept: list[Frame] = []
    for frame in frames:
        if kept and frame.at_s < kept[-1].at_s + interval_s and len(kept) > 1:
            kept[-1] = Frame(kept[-1].at_s, frame.rows)
        else:
            kept.append(frame)
    return [next(group) for _, group in groupby(kept, key=lambda frame: frame.rows)]


def shorten_pauses(frames: Sequence[Frame], limit_s: float) -> list[Frame]:
    """Return the frames without the part of each pause beyond the limit.

    A pause is the time during which nothing on the screen changes but running times.
    """
    shown: list[Frame] = []
    skipped_s = 0.0
    pause_began_s = 0.0
    words = ""
    for frame in frames:
        changed = _without_times(frame.rows)
        if changed != words:
            skipped_s += max(0.0, frame.at_s - pause_began_s - limit_s) if shown else 0.0
            pause_began_s, words = frame.at_s, changed
        elif frame.at_s - pause_began_s > limit_s:
            continue
        shown.append(Frame(round(frame.at_s - skipped_s, 3), frame.rows))
    return shown


def _without_times(rows: Rows) -> str:
    return _TIME.sub("", text_of(rows))
