"""Plan a recipe as commands do, on the AWS backend over a cloud that a test makes, or offline."""

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cloudgpu.app.planning.planner import Planned, PlanRequest, make_plan
from cloudgpu.backends.aws.backend import AwsBackend
from cloudgpu.catalog import load
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.paths import Home


def plan_on(
    recipe: str,
    sets: Sequence[str] = (),
    *,
    home: Home,
    today: date,
    target: str = "aws",
    cloud: Any = None,
    clock: Clock | None = None,
    **more: Any,
) -> Planned:
    """Plan with this home's quotas and cool-downs; without a cloud, offline."""
    backend = AwsBackend((target, "a cloud of a test"), home, clock or SystemClock(), lambda: cloud, lambda: None)
    more.setdefault("catalog", load())
    request = PlanRequest(
        recipe, today=today, default_region="us-east-1", sets=sets, offline=cloud is None, **{"roots": (), **more}
    )
    return make_plan(request, backend)


def nowhere(folder: Path) -> Home:
    """A home in which nothing is recorded."""
    return Home(folder / "nowhere")
