"""The kill matrix in shards: which cases a process works off, what is known of them, and the report.

Run by scripts/kill-matrix. Results are kept below .cache/kills by the content of the sources, one line a case: what has
passed is not run again, so a matrix that was cut off goes on, and shards of several machines add up in one folder.
"""

import contextlib
import hashlib
import json
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "kills"
_SOURCES = ("cloudgpu", "infra", "tests/rehearsal/kills", "tests/rehearsal/forking")


@dataclass(frozen=True)
class Result:
    """What one case of a test came to; `failure` is its first line, empty without one."""

    test: str
    case: str
    seconds: float
    failure: str = ""


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of every test's cases, by a digest of their names."""

    number: int = 0
    of: int = 1

    @classmethod
    def parsed(cls, text: str) -> "Shard":
        """`3/8` as the third of eight.

        Raises:
            ValueError: It is no such text.
        """
        number, _, of = text.partition("/")
        shard = cls(int(number) - 1, int(of))
        if not 0 <= shard.number < shard.of:
            message = f"expected a shard such as 3/8, got {text}"
            raise ValueError(message)
        return shard

    def holds(self, case: str) -> bool:
        return zlib.crc32(case.encode()) % self.of == self.number


@dataclass
class Matrix:
    """What a process is to run of the matrix, and where it writes down what has passed."""

    folder: Path
    shard: Shard
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def due(self, test: str, cases: Iterable[Any]) -> list[Any]:
        """The cases of this shard that have not passed yet. How many there are in all is written down."""
        every = list(cases)
        passed = {one.case for one in stored(self.folder) if one.test == test and not one.failure}
        self._write("totals.jsonl", {"test": test, "cases": len(every)})
        return [case for case in every if self.shard.holds(str(case)) and str(case) not in passed]

    def keep(self, result: Result) -> None:
        self._write("results.jsonl", asdict(result))

    def _write(self, name: str, row: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # A line of its own, also behind what a killed run left of its last one.
        with self._lock, (self.folder / name).open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row) + "\n")


def version() -> str:
    """The content of everything that decides about a result."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def stored(folder: Path) -> list[Result]:
    """The last result of each case."""
    found = {(row["test"], row["case"]): Result(**row) for row in _rows(folder / "results.jsonl")}
    return list(found.values())


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):  # the last line of a run that was killed may be cut off
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def report(folder: Path) -> list[str]:
    """One line a test: its cases, those that passed and failed, and what the rest will take; then the failures."""
    totals = {row["test"]: int(row["cases"]) for row in _rows(folder / "totals.jsonl")}
    results = stored(folder)
    lines = [f"{'passed':>7} {'failed':>7} {'left':>7} {'s/case':>7}  test"]
    left_s = 0.0
    for test, total in sorted(totals.items()):
        own = [one for one in results if one.test == test]
        failed = sum(1 for one in own if one.failure)
        pace = sum(one.seconds for one in own) / len(own) if own else 0.0
        left = max(0, total - len(own))
        left_s += left * pace
        lines.append(f"{len(own) - failed:7} {failed:7} {left:7} {pace:7.2f}  {test.rpartition('/')[2]}")
    passed = sum(1 for one in results if not one.failure)
    lines.append(f"{passed} of {sum(totals.values())} cases passed; some {left_s / 60:.0f} min of one worker are left")
    lines += [f"failed: {one.test.rpartition('/')[2]} at {one.case}: {one.failure}" for one in results if one.failure]
    return lines


@contextlib.contextmanager
def timed(matrix: Matrix, test: str, case: object) -> Iterator[None]:
    """Write down how a case ended; its failure goes no further."""
    began = time.monotonic()
    failure = ""
    try:
        yield
    except (Exception, pytest.fail.Exception) as err:  # noqa: BLE001 - the other cases are run, the test fails in the end
        failure = f"{type(err).__name__}: {str(err).partition(chr(10))[0]}"[:300]
    matrix.keep(Result(test, str(case), round(time.monotonic() - began, 2), failure))


def main(arguments: Sequence[str]) -> int:
    """Print where the results are, or the report."""
    folder = CACHE / version()
    if list(arguments) == ["folder"]:
        print(folder)
        return 0
    print("\n".join(report(folder)))
    return 1 if any(one.failure for one in stored(folder)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
