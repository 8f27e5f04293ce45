"""Plan a recipe like a command, on the AWS backend with a cloud provided by the test, or offline."""

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
    """Plan with the quotas and cool-downs of this state home. Without a cloud, plan offline."""
    backend = AwsBackend((target, "a cloud of a test"), home, clock or SystemClock(), lambda: cloud, lambda: None)
    more.setdefault("catalog", load())
    request = PlanRequest(
        recipe, today=today, default_region="us-east-1", sets=sets, offline=cloud is None, **{"roots": (), **more}
    )
    return make_plan(request, backend)


def nowhere(folder: Path) -> Home:
    """Return an empty state home."""
    return Home(folder / "nowhere")
