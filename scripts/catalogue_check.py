"""Check the data files of the catalog. Print every problem, and exit with status 1 if there are any."""

import sys
from typing import Final

import catalogue_hardware_checks as hardware
import catalogue_software_checks as software
from catalogue_hardware_checks import CatalogData, DataProblem, load_bundled_data

RULES: Final[tuple[hardware.Rule, ...]] = (
    hardware.check_versions,
    hardware.check_hardware,
    hardware.check_retirement,
    hardware.check_offers,
    hardware.check_prices,
    hardware.check_unsupported,
    hardware.check_type_sources,
    hardware.check_version_ranges,
    hardware.check_gpus,
    hardware.check_bootstrap_drivers,
    hardware.check_gpu_sources,
    software.check_months,
    software.check_month_order,
    software.check_months_for_gpus,
    software.check_images,
    software.check_wheels,
    software.check_wheels_for_gpus,
    software.check_efa_minimums,
)


def problems(data: CatalogData) -> tuple[DataProblem, ...]:
    """Return the problems that the checks find; empty for consistent data.

    If a version cannot be parsed, only unparseable versions are reported, because the other checks compare hardware.
    """
    first, *others = RULES
    unreadable = tuple(first(data))
    return unreadable or tuple(problem for rule in others for problem in rule(data))


def main() -> int:
    """Print every problem and return the exit status."""
    problem_lines = problems(load_bundled_data())
    for problem in problem_lines:
        print(problem)
    return 1 if problem_lines else 0


if __name__ == "__main__":
    sys.exit(main())
