"""A rehearsal cloud that is stopped and started again works as before."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_nodes_can_write_the_uv_cache_after_a_restart(workspace):
    """Regression: from the second start on an existing cache was mounted read-only, so uv failed and pip was used."""
    workspace.recipe()
    for _ in range(2):
        workspace.run("up", "plain", "--yes")
        workspace.run("exec", "plain", "--", 'mkdir -p "$UV_CACHE_DIR" && touch "$UV_CACHE_DIR/probe"')
        workspace.run("down", "plain")
        workspace.run("rehearsal", "stop")
