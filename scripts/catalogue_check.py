"""Say what is wrong with the catalogue's data files, and end with 1 if anything is."""

import sys

from cloudgpu.catalog.checking import known, problems


def main() -> int:
    """Print every problem."""
    found = problems(known())
    for one in found:
        print(one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
