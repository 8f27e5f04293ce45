"""The plan for a cluster that is already running, before confirmation prompts."""

from collections.abc import Iterator
from datetime import datetime

from cloudgpu.backends.billing.costs import cluster_hourly_usd, cost_items
from cloudgpu.cli.render.plan import service_lines
from cloudgpu.cli.terminal.number_format import format_time, relative_time
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.plan.costs import total_usd
from cloudgpu.plan.money import format_cents, format_hourly_rate
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_record import ClusterRecord


def running_plan_lines(plan: Plan, record: ClusterRecord, now: datetime, width: int | None = None) -> list[str]:
    """Return one line with the cluster's real expiry and cost, and the warnings of the plan.

    The plan's offers and prices are left out, because nothing will be launched.
    """
    return wrap_lines([_cluster(plan, record, now), *service_lines(plan.recipe), *_warnings(plan)], width)


def _cluster(plan: Plan, record: ClusterRecord, now: datetime) -> str:
    placement, expiry = record.placement, record.lifecycle.expires_at
    seconds = max(0, int((expiry - now).total_seconds()))
    simulated = "  [simulated]" if plan.simulated else ""
    return (
        f"{plan.recipe.name} on running cluster {record.name} ({placement.nodes} x {placement.instance_type}), expires "
        f"{format_time(expiry)}, {relative_time(expiry, now)}: {format_hourly_rate(cluster_hourly_usd(record))} USD/h, "
        f"at most {format_cents(total_usd(cost_items(record), seconds))} USD until then{simulated}"
    )


def _warnings(plan: Plan) -> Iterator[str]:
    yield from (
        f"warning: {finding.message} [{finding.check}]" for finding in plan.findings if finding.severity == "warning"
    )
