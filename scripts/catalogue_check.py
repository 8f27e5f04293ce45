"""Check the data files of the catalog. Print every problem, and exit with status 1 if there are any."""

import sys

from cloudgpu.catalog.checking import load_bundled_data, problems


def main() -> int:
    """Print every problem and return the exit status."""
    problem_lines = problems(load_bundled_data())
    for problem in problem_lines:
        print(problem)
    return 1 if problem_lines else 0


if __name__ == "__main__":
    sys.exit(main())
