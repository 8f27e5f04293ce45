"""A successful run fails if a metric misses a limit, with the metric and the limit as the reason."""

from dataclasses import replace

import pytest

from cloudgpu.app.runs.finish import with_final_status
from cloudgpu.app.runs.nodes import FollowResult
from cloudgpu.recipe.schema import Metric
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.metrics import Measured
from tests.unit.run.test_transport import record


@pytest.mark.parametrize(
    ("value", "limits", "reason"),
    [
        (0.9, {"at_least": 0.95}, "m reached 0.9, below the required minimum of 0.95"),
        (0.6, {"at_most": 0.5}, "m reached 0.6, above the allowed maximum of 0.5"),
        (0.5, {"at_least": 1, "at_most": 2}, "m reached 0.5, below the required minimum of 1"),
        (3, {"at_least": 1, "at_most": 2}, "m reached 3, above the allowed maximum of 2"),
        (None, {"at_least": 0.95}, "m was never printed; the required minimum is 0.95"),
        (None, {"at_most": 0.5}, "m was never printed; the allowed maximum is 0.5"),
        (
            None,
            {"at_least": 1, "at_most": 2},
            "m was never printed; the required minimum is 1 and the allowed maximum is 2",
        ),
        (float("nan"), {"at_most": 0.5}, "m reached nan; the allowed maximum is 0.5"),
        (0.5, {"at_most": 0.5}, ""),
        (3, {}, ""),
    ],
)
def test_missed_limits_fail_a_successful_run(value: float | None, limits: dict[str, float], reason: str) -> None:
    measured = Measured("m", value, Metric(pattern="m=(?P<value>.*)", better="lower", **limits))
    ended = with_final_status(
        replace(record("auto"), state="running"), FollowResult(Verdict("succeeded"), (measured,), ())
    )
    assert (ended.state, ended.reason) == ("failed" if reason else "succeeded", reason)


def test_metric_with_a_slow_pattern_fails_the_run_as_unknown() -> None:
    metric = Metric(pattern="m=(?P<value>.*)", better="lower", at_most=0.5)
    measured = Measured("m", None, metric, printed=3, unknown="its pattern is too slow for the output")
    ended = with_final_status(
        replace(record("auto"), state="running"), FollowResult(Verdict("succeeded"), (measured,), ())
    )
    assert ended.reason == "m is unknown, because its pattern is too slow for the output; the allowed maximum is 0.5"
