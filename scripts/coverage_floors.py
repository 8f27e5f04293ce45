"""Check that the unit tests' coverage of each package is at least the floor in pyproject.toml.

Reads the coverage.py data file that `scripts/test-pythons` writes. A package without a floor is an error, and so is
a floor without a package. Set a floor when you add a package.
"""

import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cloudgpu"


@dataclass(frozen=True)
class Covered:
    """Coverage of a package: the number of its statements, and the number of statements that ran."""

    statements: int = 0
    ran: int = 0

    @property
    def percent(self) -> float:
        """Return the percentage of statements that ran; 100 for a package without statements."""
        return 100 * self.ran / self.statements if self.statements else 100.0

    def plus(self, statements: int, ran: int) -> "Covered":
        """Return the coverage with one more file included."""
        return Covered(self.statements + statements, self.ran + ran)


def package_of(path: Path) -> str:
    """Return the package of a file below cloudgpu/; modules at the top level are one package, `cloudgpu`."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "cloudgpu"


def by_package(files: Iterable[tuple[Path, int, int]]) -> dict[str, Covered]:
    """Add up the statements, and the statements that ran, by package."""
    packages: dict[str, Covered] = defaultdict(Covered)
    for path, statements, ran in files:
        packages[package_of(path)] = packages[package_of(path)].plus(statements, ran)
    return dict(packages)


def problems(covered: Mapping[str, Covered], floors: Mapping[str, float]) -> list[str]:
    """Return one line for each package below its floor, each package without a floor, and each unused floor."""
    wrong = [f"{name} has no floor in pyproject.toml" for name in sorted(covered.keys() - floors.keys())]
    wrong += [f"{name} has a floor but no file" for name in sorted(floors.keys() - covered.keys())]
    for name in sorted(covered.keys() & floors.keys()):
        if covered[name].percent < floors[name]:
            wrong.append(
                f"{name}: {covered[name].percent:.1f} % of its statements ran, but the floor is {floors[name]:g} %"
            )
    return wrong


def table(covered: Mapping[str, Covered], floors: Mapping[str, float]) -> Iterable[str]:
    """Return the lines of a table, worst package first."""
    yield f"{'package':<12}{'statements':>12}{'ran':>9}{'floor':>9}"
    for name, package in sorted(covered.items(), key=lambda row: row[1].percent):
        yield f"{name:<12}{package.statements:>12}{package.percent:>7.1f} %{floors.get(name, 0):>7g} %"


def measured(data_file: Path) -> list[tuple[Path, int, int]]:
    """Return the path, the statements and the statements that ran for every file of cloudgpu/, imported or not."""
    report = coverage.Coverage(data_file=str(data_file))
    report.load()
    rows = []
    for path in sorted(PACKAGE.rglob("*.py")):
        _, statements, _, missing, _ = report.analysis2(str(path))
        rows.append((path, len(statements), len(statements) - len(missing)))
    return rows


def main(argv: list[str]) -> int:
    """Print the table and the problems, and return 1 if there are problems."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    floors = settings["tool"]["cloudgpu"]["coverage-floors"]
    covered = by_package(measured(Path(argv[0])))
    print(*table(covered, floors), sep="\n")
    wrong = problems(covered, floors)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
