import os

from cloudgpu.rehearsal.nodes.visible_paths import find_visible_paths


def test_writable_paths_stay_writable_on_the_second_start(tmp_path):
    """A shared folder includes its subfolders; a separate read-only mount on one would remove write access."""
    home, envs = tmp_path / "home", tmp_path / "home" / "envs"
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first = find_visible_paths(home, envs, environment)
    (envs / ".uv" / "wheels").mkdir(parents=True)
    second = find_visible_paths(home, envs, environment)
    assert dict(second.environment)["UV_CACHE_DIR"] == str(envs / ".uv")
    assert [path for path in second.readable if any(path.is_relative_to(one) for one in second.writable)] == []
    assert second == first
