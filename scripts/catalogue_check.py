"""Say what is wrong with the catalogue's data files, and end with 1 if anything is."""

import sys

from cloudgpu.catalog.checking import known, problems


def main() -> int:
    """Print every problem."""
    problem_lines = problems(known())
    for problem in problem_lines:
        print(problem)
    return 1 if problem_lines else 0


if __name__ == "__main__":
    sys.exit(main())
