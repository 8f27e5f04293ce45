"""The table that nccl-tests print: its formulas, its lines, and what was measured elsewhere."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
HEADING = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"""
_FIGURE = r"(?:[0-9.]+(?:e[+-]?\d+)?|N/A|n/a|-)"
_LINE = re.compile(
    rf"(?:^|\s)(\d+)\s+(\d+)\s+(\w+)\s+(\w+)(?:\s+-?\d+)?\s+{_FIGURE}\s+{_FIGURE}\s+({_FIGURE})\s+(\S+)"
    rf"\s+({_FIGURE})\s+({_FIGURE})\s+({_FIGURE})\s+(\S+)\s*$"
)
"""Size, count, type, operation, a root that old versions leave out; time, algbw, busbw and wrong values, twice."""


@dataclass(frozen=True)
class Row:
    """One size, measured in place.

    Attributes:
        size: Bytes.
        time_us: Microseconds of one operation.
        wrong: Values that came out wrong; None where nobody looked.
        beside: Bus bandwidth out of place, where it was measured.
    """

    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int | None = 0
    beside: float | None = None


@dataclass(frozen=True)
class Expected:
    """What somebody measured on such a cluster, in GB/s of bus bandwidth, with large messages."""

    busbw: float
    source: str


EXPECTED: Mapping[tuple[str, int], Expected] = {
    ("p3.16xlarge", 1): Expected(120, "six NVLinks of 20 GB/s, NCCL's model of V100"),
    ("p3dn.24xlarge", 1): Expected(120, "six NVLinks of 20 GB/s, NCCL's model of V100"),
    ("p3dn.24xlarge", 2): Expected(10, "EFA of 2019, NVIDIA/nccl issue 235"),
    ("p4d.24xlarge", 1): Expected(230.8, "NVIDIA/nccl issue 527"),
    ("p4d.24xlarge", 2): Expected(57.2, "EFA of 2021, NVIDIA/nccl issue 527"),
    ("p4de.24xlarge", 2): Expected(78.3, "aws-samples/awsome-distributed-training, nccl-tests"),
    ("p5.48xlarge", 2): Expected(487, "aws-samples/awsome-distributed-training, nccl-tests, 16 GB"),
}
"""By instance type and number of nodes."""


def sizes(first: str, last: str, factor: int) -> list[int]:
    """Bytes from `first` to `last`, each `factor` times the one before.

    Raises:
        ValueError: They cannot be read, or there are none.
    """
    found, size, end = [], in_bytes(first), in_bytes(last)
    if factor < 2 or size < 4:
        raise ValueError(
            f"sizes from {first} by a factor of {factor}: expected 4 bytes or more, and a factor of 2 or more"
        )
    while size <= end:
        found.append(size)
        size *= factor
    if not found:
        raise ValueError(f"no sizes from {first} to {last}")
    return found


def in_bytes(text: str) -> int:
    """`8`, `64K`, `512M`, `1G`.

    Raises:
        ValueError: Anything else.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    if match is None:
        raise ValueError(f'"{text}" is no size; expected one as 8, 64K, 512M or 1G')
    return int(match[1]) * UNITS[match[2]]


def row(size: int, seconds: float, ranks: int, wrong: int | None = 0) -> Row:
    """An all-reduce of `size` bytes: algbw is size over time, busbw what every link carried: 2(n-1)/n of it."""
    algbw = size / seconds / 1e9
    return Row(size, seconds * 1e6, algbw, algbw * 2 * (ranks - 1) / ranks, wrong)


def line(one: Row) -> str:
    """The row as nccl-tests print it; what was not measured out of place is `N/A`."""
    beside = f"{'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
    wrong = "N/A" if one.wrong is None else one.wrong
    inside = f"{one.time_us:7.1f}  {one.algbw:6.2f}  {one.busbw:6.2f}  {wrong:>5}"
    return f"{one.size:12}  {one.size // 4:12}  {'float':>8}  {'sum':>6}  {-1:6}  {beside}  {inside}"


def read(lines: Iterable[str]) -> list[Row]:
    """The rows among what nccl-tests printed, whatever stands between and before them."""
    return [found for text in lines if (found := _row(text)) is not None]


def _row(text: str) -> Row | None:
    match = _LINE.search(text)
    if match is None or text.lstrip().startswith("#"):
        return None
    size, beside, time_us, algbw, busbw, wrong = (match[index] for index in (1, 5, 7, 8, 9, 10))
    if not all(map(_is_number, (time_us, algbw, busbw))):
        return None
    return Row(
        int(size),
        float(time_us),
        float(algbw),
        float(busbw),
        int(wrong) if wrong.isdecimal() else None,
        float(beside) if _is_number(beside) else None,
    )


def _is_number(text: str) -> bool:
    return text[0].isdecimal()


def average(rows: Iterable[Row]) -> float:
    """What `Avg bus bandwidth` says: the mean over all sizes, in place and out of place."""
    values = [value for one in rows for value in (one.busbw, one.beside) if value is not None]
    return sum(values) / len(values) if values else 0.0


def peak(rows: Iterable[Row]) -> Row:
    """The row with the most bandwidth."""
    return max(rows, key=lambda one: one.busbw)
