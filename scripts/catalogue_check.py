"""Print the problems of the catalogue's data files, and exit with 1 if there are any."""

import sys

from cloudgpu.catalog.checking import known, problems


def main() -> int:
    """Print every problem and return the exit status."""
    problem_lines = problems(known())
    for problem in problem_lines:
        print(problem)
    return 1 if problem_lines else 0


if __name__ == "__main__":
    sys.exit(main())
