"""Bus bandwidth by size, as a drawing (SVG) that any browser shows."""

import math
from collections.abc import Sequence

from table import Expected, Row

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
FONT = 'font-family="sans-serif" font-size="12"'
NAMES = ("B", "KiB", "MiB", "GiB")


def svg(rows: Sequence[Row], title: str, expected: Expected | None) -> str:
    """The rows as a line over sizes, which double from mark to mark, and the expected figure as another."""
    top = ceiling(max([one.busbw for one in rows] + ([expected.busbw] if expected else [])))
    first, last = math.log2(rows[0].size), math.log2(rows[-1].size)

    def place(size: int, busbw: float) -> tuple[float, float]:
        across = (math.log2(size) - first) / ((last - first) or 1)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - busbw / top * (HEIGHT - TOP - BOTTOM),
        )

    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(one.size, one.busbw) for one in rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{title}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        _, y = place(rows[0].size, top * share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * share:g}</text>')
    every = max(1, len(rows) // 8)
    for one in rows[::every]:
        x, _ = place(one.size, 0)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{human(one.size)}</text>')
    if expected:
        _, y = place(rows[0].size, expected.busbw)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c60" stroke-dasharray="6 4"/>'
        )
        parts.append(f'<text x="{LEFT + 6}" y="{y - 5:.1f}" fill="#c60">{expected.busbw:g}: {expected.source}</text>')
    parts.append(f'<polyline points="{points}" fill="none" stroke="#06c" stroke-width="2"/>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 10}">size of the message; up: bus bandwidth in GB/s</text>')
    return "\n".join([*parts, "</svg>\n"])


def ceiling(value: float) -> float:
    """The next round figure: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def human(size: int) -> str:
    """`64 KiB`."""
    index = min(3, int(math.log2(size) // 10))
    return f"{size / 1024**index:g} {NAMES[index]}"
