import os

from cloudgpu.rehearsal.nodes.visible_paths import find_visible_paths


def test_nothing_that_nodes_write_to_is_mounted_read_only_the_second_time(tmp_path):
    """What lies below a shared folder comes with it: a mount of its own on it would take the right to write away."""
    home, envs = tmp_path / "home", tmp_path / "home" / "envs"
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = find_visible_paths(home, envs, environment)
    (envs / ".uv" / "wheels").mkdir(parents=True)
    second = find_visible_paths(home, envs, environment)
    assert dict(second.environment)["UV_CACHE_DIR"] == str(envs / ".uv")
    assert [path for path in second.readable if any(path.is_relative_to(one) for one in second.writable)] == []
    assert second == first
