"""Where recipes are carried through."""

from collections.abc import Iterator

import pytest

from tests.rehearsal.conftest import Bench


@pytest.fixture(scope="module")
def lab(make_bench, tmp_path_factory) -> Iterator[Bench]:
    """One rehearsal cloud for all recipes of a file; every run makes and ends a cluster of its own."""
    with make_bench(tmp_path_factory.mktemp("lab")) as bench:
        yield bench
