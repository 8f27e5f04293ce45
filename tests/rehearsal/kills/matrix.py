"""The kill matrix: its shards, the stored results, and the report.

Used by scripts/kill-matrix. Results are stored below .cache/kills, in a folder named after a digest of the sources, one
line per case. Cases that have passed are not run again, so an interrupted matrix can be resumed, and the results of
shards that ran on several machines can be combined in one folder.
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
    """Result of one case of a test. `failure` is the first line of its error, or empty if it passed."""

    test: str
    case: str
    seconds: float
    failure: str = ""


@dataclass(frozen=True)
class Shard:
    """One of several parts of every test's cases, of about equal size, selected by a digest of the case names."""

    number: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse `3/8` as the third of eight shards.

        Raises:
            ValueError: The text is not a valid shard.
        """
        number, _, count = text.partition("/")
        shard = cls(int(number) - 1, int(count))
        if not 0 <= shard.number < shard.count:
            message = f"expected a shard such as 3/8, got {text}"
            raise ValueError(message)
        return shard

    def contains(self, case: str) -> bool:
        return zlib.crc32(case.encode()) % self.count == self.number


@dataclass
class Matrix:
    """One shard of the matrix, and the folder of its results."""

    folder: Path
    shard: Shard
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def pending(self, test: str, cases: Iterable[Any]) -> list[Any]:
        """Return the cases of this shard that have not passed yet, and store the number of cases of all shards."""
        all_cases = list(cases)
        results = load_results(self.folder)
        passed = {result.case for result in results if result.test == test and not result.failure}
        self._append("totals.jsonl", {"test": test, "cases": len(all_cases)})
        return [case for case in all_cases if self.shard.contains(str(case)) and str(case) not in passed]

    def add(self, result: Result) -> None:
        self._append("results.jsonl", asdict(result))

    def _append(self, name: str, row: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # The leading newline separates the row from a partial line of a killed run.
        with self._lock, (self.folder / name).open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps(row) + "\n")


def source_digest() -> str:
    """Return a digest of all sources that affect a result."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def load_results(folder: Path) -> list[Result]:
    """Return the last result of each case."""
    found = {(row["test"], row["case"]): Result(**row) for row in _rows(folder / "results.jsonl")}
    return list(found.values())


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):  # the last line of a killed run may be incomplete
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def report(folder: Path) -> list[str]:
    """Return the lines of the report: results and remaining cases of each test, the total, and the failures."""
    totals = {row["test"]: int(row["cases"]) for row in _rows(folder / "totals.jsonl")}
    results = load_results(folder)
    lines = [f"{'passed':>7} {'failed':>7} {'left':>7} {'s/case':>7}  test"]
    remaining_s = 0.0
    for test, total in sorted(totals.items()):
        of_test = [result for result in results if result.test == test]
        failed = sum(1 for result in of_test if result.failure)
        mean_s = sum(result.seconds for result in of_test) / len(of_test) if of_test else 0.0
        remaining = max(0, total - len(of_test))
        remaining_s += remaining * mean_s
        lines.append(f"{len(of_test) - failed:7} {failed:7} {remaining:7} {mean_s:7.2f}  {test.rpartition('/')[2]}")
    passed = sum(1 for result in results if not result.failure)
    lines.append(
        f"{passed} of {sum(totals.values())} cases passed; some {remaining_s / 60:.0f} min of one worker are left"
    )
    failures = [result for result in results if result.failure]
    lines += [f"failed: {result.test.rpartition('/')[2]} at {result.case}: {result.failure}" for result in failures]
    return lines


@contextlib.contextmanager
def record_result(matrix: Matrix, test: str, case: object) -> Iterator[None]:
    """Store the result and the duration of a case. A failure is stored and not raised."""
    started = time.monotonic()
    failure = ""
    try:
        yield
    except (Exception, pytest.fail.Exception) as err:  # noqa: BLE001 - the remaining cases run, then the test fails
        failure = f"{type(err).__name__}: {str(err).partition(chr(10))[0]}"[:300]
    matrix.add(Result(test, str(case), round(time.monotonic() - started, 2), failure))


def main(arguments: Sequence[str]) -> int:
    """Print the folder of the results, or the report."""
    folder = CACHE / source_digest()
    if list(arguments) == ["folder"]:
        print(folder)
        return 0
    print("\n".join(report(folder)))
    return 1 if any(result.failure for result in load_results(folder)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
