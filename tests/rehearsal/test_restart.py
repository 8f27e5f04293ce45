"""A rehearsal cloud that was stopped and started again is the one that it was before."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_nodes_can_write_the_cache_of_uv_after_a_restart(workspace):
    """It was mounted read-only from the second start on, when it was there already: uv failed, and pip had to do."""
    workspace.recipe()
    for _ in range(2):
        workspace.run("up", "plain", "--yes")
        workspace.run("exec", "plain", "--", 'mkdir -p "$UV_CACHE_DIR" && touch "$UV_CACHE_DIR/probe"')
        workspace.run("down", "plain")
        workspace.run("rehearsal", "stop")
