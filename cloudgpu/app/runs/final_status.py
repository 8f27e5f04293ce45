"""The final status of a run: the verdict of its ranks, the network that it required, and its metrics."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from cloudgpu.app.runs.follow import FollowResult
from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.node.agent.transport import EFA, UNKNOWN
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.metrics import Measured
from cloudgpu.run.transport import PLUGIN_HINT
from cloudgpu.state.run_records import RunRecord, RunState

_STATES: Mapping[str, RunState] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}


def run_state(verdict: Verdict) -> RunState:
    """Return the run's state for a final status. Map an unknown status to `lost`."""
    return _STATES.get(verdict.state, "lost")


def with_final_status(record: RunRecord, followed: FollowResult) -> RunRecord:
    """Return the run's record with its final status and metrics.

    A successful run becomes `failed` if a metric with a required minimum is too low or was never printed.
    """
    verdict = followed.verdict
    metrics = {
        metric.name: metric.value for metric in followed.measured if metric.value is not None and isfinite(metric.value)
    }
    record = replace(
        record,
        state=run_state(verdict),
        metrics=metrics,
        reason=verdict.reason,
        failed_rank=verdict.rank,
        exit_code=verdict.exit_code,
        transport=followed.transport or record.transport,
    )
    required = recipe_of(record).resources.network
    if record.state == "succeeded" and required == EFA and record.transport not in ("", EFA, UNKNOWN):
        # The run ended before its agents could fail it.
        reason = f"resources.network is efa, but NCCL used {record.transport}: {PLUGIN_HINT}"
        return replace(record, state="failed", reason=reason)
    missed = [metric for metric in followed.measured if metric.missed_target]
    if record.state == "succeeded" and missed:
        return replace(record, state="failed", reason=_missed_reason(missed[0]))
    return record


def _missed_reason(missed: Measured) -> str:
    """Return why a metric fails the run."""
    low, high = missed.metric.at_least, missed.metric.at_most
    if missed.value is not None and missed.is_too_high:
        return f"{missed.name} reached {missed.value:g}, above the allowed maximum of {high:g}"
    if missed.value is not None and low is not None:
        return f"{missed.name} reached {missed.value:g}, below the required minimum of {low:g}"
    limits = [] if low is None else [f"the required minimum is {low:g}"]
    limits += [] if high is None else [f"the allowed maximum is {high:g}"]
    what = "was never printed" if missed.value is None else f"reached {missed.value:g}"
    what = f"is unknown, because {missed.unknown}" if missed.unknown else what
    return f"{missed.name} {what}; {' and '.join(limits)}"
