"""Where recipes are carried through."""

from collections.abc import Iterator

import pytest

from tests.rehearsal.conftest import Workspace


@pytest.fixture(scope="module")
def lab(make_workspace, tmp_path_factory) -> Iterator[Workspace]:
    """One rehearsal cloud for all recipes of a file; every run makes and ends a cluster of its own."""
    with make_workspace(tmp_path_factory.mktemp("lab")) as workspace:
        yield workspace
