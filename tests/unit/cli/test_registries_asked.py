"""Which plans ask the registry of a container: those after which a node would pull it."""

from types import SimpleNamespace

import pytest

from cloudgpu.app.planning import hosts, planner
from cloudgpu.cli.context import plans
from cloudgpu.cli.context.wiring import Wiring
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
def test_a_registry_is_asked_where_nodes_would_pull(monkeypatch, tmp_path, target: str, offline: bool, asks: bool):
    def made(*_args: object, surveyor, **_more: object) -> SimpleNamespace:
        return SimpleNamespace(surveyor=surveyor)

    monkeypatch.setattr(planner, "make_plan", made)
    monkeypatch.setattr(hosts, "make_host_plan", made)
    settings = load(flags={"target": target}, environ={"CLOUDGPU_HOME": str(tmp_path)}, cwd=tmp_path)
    wiring = Wiring(settings, SimpleNamespace(emit=print), SystemClock())
    surveyor = plans.plan_recipe(wiring, "tiny", [], offline=offline).surveyor
    assert surveyor.ask_registry is (wiring.registries.images if asks else None)
