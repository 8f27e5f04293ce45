"""Memory of the syntax trees that these tests share."""

from collections.abc import Iterator

import pytest

from tests.source_code import syntax_nodes


@pytest.fixture(scope="package", autouse=True)
def forget_syntax_nodes() -> Iterator[None]:
    """Free the trees after the last of these tests: each full garbage collection would visit a million nodes."""
    yield
    syntax_nodes.cache_clear()
