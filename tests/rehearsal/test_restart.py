"""A rehearsal cloud that was stopped and started again is the one that it was before."""

import pytest

pytestmark = pytest.mark.rehearsal


def test_nodes_can_write_the_cache_of_uv_after_a_restart(bench):
    """It was mounted read-only from the second start on, when it was there already: uv failed, and pip had to do."""
    bench.recipe()
    for _ in range(2):
        bench.run("up", "plain", "--yes")
        bench.run("exec", "plain", "--", 'mkdir -p "$UV_CACHE_DIR" && touch "$UV_CACHE_DIR/probe"')
        bench.run("down", "plain")
        bench.run("rehearsal", "stop")
