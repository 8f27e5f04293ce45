"""A plan queries the container registry only if a node would pull the image."""

from types import SimpleNamespace

import pytest

from cloudgpu.cli import planning as plan_request
from cloudgpu.cli.context import CliContext
from cloudgpu.clock import SystemClock
from cloudgpu.settings import load


@pytest.mark.parametrize(
    ("target", "offline", "asks"),
    [
        ("aws", False, True),
        ("aws", True, False),
        ("ssh", False, True),
        ("ssh", True, False),
        ("rehearsal", False, False),
    ],
)
def test_registry_is_queried_only_if_nodes_would_pull_the_image(
    monkeypatch, tmp_path, target: str, offline: bool, asks: bool
):
    monkeypatch.setattr(plan_request, "make_plan", lambda request, backend: (request, backend))
    settings = load(flags={"target": target}, environ={"CLOUDGPU_HOME": str(tmp_path)}, cwd=tmp_path)
    context = CliContext(settings, SimpleNamespace(emit=print), SystemClock())
    request, backend = plan_request.plan_recipe(context, "tiny", [], offline=offline)
    assert (backend.target, request.offline) == (target, offline)
    assert (request.preflight.ask_registry is not None) is asks
