"""The workspace in which the recipes run."""

from collections.abc import Iterator

import pytest

from tests.rehearsal.conftest import Workspace


@pytest.fixture(scope="module")
def recipe_workspace(make_workspace, tmp_path_factory) -> Iterator[Workspace]:
    """Workspace that all recipes of a test file share. Every run creates and deletes its own cluster."""
    with make_workspace(tmp_path_factory.mktemp("recipes")) as workspace:
        yield workspace
