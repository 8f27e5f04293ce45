"""Render the frames of a recording as an animated SVG.

Every line of text has the interval during which it is on the screen. The picture is the last frame; the animation is a
style for readers who have not asked their system for reduced motion, so that a renderer without animation, too, shows
the last frame. Nothing is loaded from elsewhere, and the window has a background of its own.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

from terminal_recording.frames import Frame, Line

_COLUMN = 8.4
_ROW = 19
_MARGIN = 18
_TITLE = 34
_COLOURS = {
    "bold": "font-weight:bold",
    "dim": "fill:#9aa4b2",
    "red": "fill:#ff7b72",
    "green": "fill:#56d364",
    "yellow": "fill:#e3b341",
    "cyan": "fill:#56d4dd",
}
_BASE_STYLE = "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e6edf3;white-space:pre}"


class Interval(NamedTuple):
    """The frames in which a line is shown: from the first one until before the last one."""

    first: int
    end: int


class _Shown(NamedTuple):
    row: int
    line: Line
    interval: Interval


def render_svg(frames: Sequence[Frame], *, columns: int, title: str, hold_s: float) -> str:
    """Return the SVG of frames that begin at zero; the last one is held before the animation begins again."""
    duration_s = frames[-1].at_s + hold_s
    shown = list(_lines(frames))
    width = round(columns * _COLUMN + 2 * _MARGIN)
    height = _TITLE + max(len(frame.rows) for frame in frames) * _ROW + _MARGIN
    moving = sorted({one.interval for one in shown if one.interval != (0, len(frames))})
    names = {interval: f"k{number}" for number, interval in enumerate(moving)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'xml:space="preserve" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{_BASE_STYLE}{_colour_styles(shown)}",
        *_animation(names, [frame.at_s for frame in frames], duration_s),
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>',
        *(f'<circle cx="{_MARGIN + 6 + 20 * dot}" cy="18" r="6" fill="#484f58"/>' for dot in range(3)),
        *(_element(one, names.get(one.interval, "")) for one in shown),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _lines(frames: Sequence[Frame]) -> Iterator[_Shown]:
    for row, lines in enumerate(zip_longest(*(frame.rows for frame in frames), fillvalue=())):
        first = 0
        for index in range(1, len(lines) + 1):
            if index == len(lines) or lines[index] != lines[first]:
                if lines[first]:
                    yield _Shown(row, lines[first], Interval(first, index))
                first = index


def _colour_styles(shown: Sequence[_Shown]) -> str:
    used = {word for one in shown for run in one.line for word in run.style.split()}
    return "".join(f".{name}{{{style}}}" for name, style in _COLOURS.items() if name in used)


def _animation(names: dict[Interval, str], times_s: Sequence[float], duration_s: float) -> Iterator[str]:
    """Yield the styles that hide all but the last frame, and those that move."""
    hidden = [f".{name}" for interval, name in names.items() if interval.end < len(times_s)]
    if hidden:
        yield f"{','.join(hidden)}{{opacity:0}}"
    yield f"@media (prefers-reduced-motion:no-preference){{g{{animation:{duration_s:g}s step-end infinite}}"
    yield from (f".{name}{{animation-name:{name}}}" for name in names.values())
    yield "}"
    for interval, name in names.items():
        steps = {0.0: 0, 100 * times_s[interval.first] / duration_s: 1}
        if interval.end < len(times_s):
            steps[100 * times_s[interval.end] / duration_s] = 0
        yield f"@keyframes {name}{{{''.join(f'{at:.4g}%{{opacity:{opacity}}}' for at, opacity in steps.items())}}}"


def _element(shown: _Shown, name: str) -> str:
    y = _TITLE + shown.row * _ROW + 14
    texts = "".join(
        f'<text x="{_MARGIN + run.column * _COLUMN:g}" y="{y}" textLength="{len(run.text) * _COLUMN:g}"'
        f"{f' class={quoteattr(run.style)}' if run.style else ''}>{escape(run.text)}</text>"
        for run in shown.line
    )
    return f'<g class="{name}">{texts}</g>' if name else texts
