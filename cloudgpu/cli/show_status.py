"""Clusters and runs as text and as JSON rows."""

from collections.abc import Sequence
from typing import Any

from cloudgpu.app.overview import ClusterStatus
from cloudgpu.app.records import RunRecord


def status_lines(clusters: Sequence[ClusterStatus]) -> list[str]:
    """One block a cluster; says so when there is none."""
    if not clusters:
        return ["no cluster is up"]
    return [line for one in clusters for line in _block(one)]


def run_lines(runs: Sequence[RunRecord]) -> list[str]:
    """One line a run, oldest first."""
    return [f"run {run.run_id}  {run.state}  {run.started_at:%Y-%m-%d %H:%M}  {run.reason}".rstrip() for run in runs]


def run_rows(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """The documented rows of `status --all --json`."""
    return [
        {
            "run_id": run.run_id,
            "cluster": run.cluster,
            "recipe": run.recipe,
            "state": run.state,
            "reason": run.reason,
            "started_at": run.started_at.isoformat(),
            "ended_at": run.ended_at.isoformat() if run.ended_at else None,
            "metrics": dict(run.metrics),
        }
        for run in runs
    ]


def _block(one: ClusterStatus) -> list[str]:
    record = one.record
    mark = "  simulated" if record.simulated else ""
    return [
        f"{record.name}  {one.state}  {record.nodes} x {record.instance_type}  {record.zone}  {record.owner}{mark}",
        f"  spent ${one.spent_usd} so far, expires {record.expires_at:%Y-%m-%d %H:%M} UTC, as of {age(one.age_s)} ago",
        *(f"  {node}  {state}" for node, state in one.nodes),
        *(f"  run {run.run_id}  {run.state}" for run in one.runs),
    ]


def age(seconds: float) -> str:
    """`3 min`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
