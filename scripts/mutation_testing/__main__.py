"""Choose changes at random, test them side by side within a time limit, and report those that no test noticed."""

import argparse
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mutation_testing.changes import Change, changes
from mutation_testing.nearest_tests import NearestTests
from mutation_testing.workers import BaselineError, Outcome, Worker

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("cloudgpu", "infra")
_SHOWN: Final = 100
"""Characters of a change in the report."""

Job = tuple[Path, Change]


def main(argv: Sequence[str]) -> int:
    """Test changes and print the report. Return 1 if tests fail without any change."""
    options = _parser().parse_args(argv)
    modules = [Path(path) for path in _modules(options)]
    jobs = _chosen(modules, options)
    seed = f"seed {options.seed}, {len(jobs)} of the changes in {len(modules)} modules"
    print(f"{seed}, at most {options.minutes:g} minutes", flush=True)
    campaign = Campaign(jobs, options.tests, options.minutes)
    campaign.run(max(1, options.jobs))
    print("\n".join(_report(campaign.outcomes, len(jobs))))
    for failure in sorted(campaign.failures):
        print(f"not tested: {failure}")
    return 1 if campaign.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules or folders; default: what changed since --base")
    parser.add_argument("--base", default="HEAD~1", metavar="COMMIT", help="default: %(default)s")
    parser.add_argument("--all", action="store_true", help="every module of the package and of the programs")
    parser.add_argument("--count", type=int, default=100, help="changes to test; default: %(default)s")
    parser.add_argument("--line", type=int, help="only changes of this line")
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after this time; default: %(default)s")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeats a choice of changes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    parser.add_argument("--tests", nargs="+", type=Path, metavar="PATH", help="run these instead of the nearest tests")
    return parser


def _modules(options: argparse.Namespace) -> list[Path]:
    """Return the modules to change, relative to the checkout."""
    if options.paths or options.all:
        given = [ROOT / path for path in options.paths] or [ROOT / package for package in PACKAGES]
        found = [path for each in given for path in ([each] if each.is_file() else each.rglob("*.py"))]
        return sorted({path.resolve().relative_to(ROOT) for path in found})
    command = ["git", "diff", "--name-only", "--diff-filter=d", options.base, "--", *PACKAGES]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(Path(name) for name in listed.stdout.splitlines() if name.endswith(".py"))


def _chosen(modules: Iterable[Path], options: argparse.Namespace) -> list[Job]:
    """Return changes chosen at random. With the same seed, the choice and its order are the same."""
    found = [
        (module, change)
        for module in modules
        for change in changes((ROOT / module).read_text(encoding="utf-8"))
        if options.line in (None, change.line)
    ]
    return random.Random(options.seed).sample(found, min(options.count, len(found)))


class Campaign:
    """Changes that several workers test until none is left or the time is over."""

    def __init__(self, jobs: Iterable[Job], tests: Sequence[Path] | None, minutes: float) -> None:
        """Queue changes. `tests` replaces the nearest tests of each module."""
        self.outcomes: list[Outcome] = []
        self.failures: set[str] = set()
        self._nearest = NearestTests(ROOT)
        self._tests = tests
        self._end = time.monotonic() + 60 * minutes
        self._pending: queue.SimpleQueue[Job] = queue.SimpleQueue()
        for job in jobs:
            self._pending.put(job)

    def run(self, workers: int) -> None:
        """Test the changes, each worker in its own copy of the checkout."""
        with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
            copies = [Path(folder, str(number)) for number in range(workers)]
            threads = [threading.Thread(target=self._work, args=(copy,)) for copy in copies]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _work(self, folder: Path) -> None:
        worker = Worker(ROOT, folder)
        while time.monotonic() < self._end:
            try:
                module, change = self._pending.get_nowait()
            except queue.Empty:
                return
            try:
                outcome = worker.test(module, change, self._tests or self._nearest.of(module))
            except BaselineError as err:
                self.failures.add(str(err))
                continue
            self.outcomes.append(outcome)
            if outcome.result != "noticed":
                print(_line(outcome), flush=True)


def _report(outcomes: Sequence[Outcome], planned: int) -> Iterator[str]:
    """Yield the rate of the changes that tests noticed, for all and for each package."""
    counts = Counter(outcome.result for outcome in outcomes)
    tested = counts["noticed"] + counts["unnoticed"]
    rate = f" ({100 * counts['noticed'] / tested:.1f}%)" if tested else ""
    yield f"noticed {counts['noticed']} of {tested}{rate}"
    yield f"without a test {counts['untested']}, left out for lack of time {planned - len(outcomes)}"
    packages = Counter(_package(outcome) for outcome in outcomes)
    noticed = Counter(_package(outcome) for outcome in outcomes if outcome.result == "noticed")
    for package, count in sorted(packages.items()):
        yield f"  {package:<24} {noticed[package]:>4} of {count}"


def _package(outcome: Outcome) -> str:
    return "/".join(outcome.module.parts[:2])


def _line(outcome: Outcome) -> str:
    change = outcome.change
    before, after = (" ".join(text.split())[:_SHOWN] for text in (change.before, change.after))
    return f"{outcome.result}: {outcome.module}:{change.line}: {before}  ->  {after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
