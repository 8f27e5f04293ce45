"""`cloudgpu quota`: show the account's quotas and how to raise them."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from cloudgpu.app.planning.quota_report import MARKETS, QuotaReportLine, quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import QuotaHeadroom, RegionQuotas
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json, On, integer_parser
from cloudgpu.cli.terminal.number_format import age
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.clock import utc_text
from cloudgpu.errors import CloudError
from cloudgpu.paths import Home
from cloudgpu.targets import is_simulated
from cloudgpu.text import plural

_COLUMNS = (
    Column("region"),
    Column("market"),
    Column("type"),
    Column("limit", right=True, priority=3),
    Column("in use", right=True, priority=3),
    Column("free", right=True),
    Column("per node", right=True, priority=2),
    Column("nodes", right=True, priority=1),
    Column("quota", priority=4, narrow="wrap", least=24),
    Column("read", priority=5, narrow="hide"),
)
_UNKNOWN = "unknown"
Gpu = Annotated[
    str,
    typer.Option(
        "--gpu",
        metavar="GPU",
        help="GPU, such as V100 or A100-80GB:8, or an instance family letter: P or G.",
    ),
]
Type = Annotated[str, typer.Option("--instance-type", metavar="TYPE", help="Instance type, such as p3dn.24xlarge.")]
Regions = Annotated[
    list[str] | None, typer.Option("--region", help="Region to query. Default: the `region` setting. Repeatable.")
]


def quota_lines(
    lines: Sequence[QuotaReportLine],
    region_quotas: Sequence[RegionQuotas],
    target: str,
    now: datetime,
    width: int | None = None,
) -> list[str]:
    """Return a table in vCPUs, the reasons for unknown values, and how to increase low or unknown quotas."""
    simulated = "  [simulated]" if is_simulated(target) else ""
    output = [f"vCPUs of running instances on {target}{simulated}", ""]
    output += Table(_COLUMNS, [_row(line, now) for line in lines]).lines(width)
    reasons = [f"unknown: {line.region}: {reason}" for line in region_quotas for reason in line.trouble]
    remedies = [text for line in lines if line.enough is not True for text in _more(line, width)]
    return [*output, *([""] if reasons or remedies else []), *wrap_lines(reasons, width), *remedies]


def _row(line: QuotaReportLine, now: datetime) -> tuple[str, ...]:
    headroom = line.room
    return (
        line.region,
        line.market,
        line.kind.name if line.kind else "-",
        str(headroom.limit_vcpus) if headroom else _UNKNOWN,
        _count(headroom.used_vcpus if headroom else None),
        _count(headroom.free_vcpus if headroom else None),
        str(line.kind.vcpus) if line.kind else "-",
        _count(line.nodes_free) if line.kind else "-",
        str(line.quota),
        f"{age((now - headroom.read_at).total_seconds())} ago" if headroom and headroom.read_at else "-",
    )


def _count(figure: int | None) -> str:
    return _UNKNOWN if figure is None else str(figure)


def _more(line: QuotaReportLine, width: int | None) -> Iterator[str]:
    """Yield lines that explain how to request an increase; nothing if the line has no instance type."""
    if line.kind is None:
        return
    what = f"{plural(line.nodes, 'node')} of {line.kind.name} {line.market} in {line.region}"
    problem = "quota too low" if line.enough is False else "unknown whether the quota is sufficient"
    yield from wrap_lines([f"{problem} for {what}: {line.needed_vcpus} vCPUs are needed; to request more:"], width)
    if line.request:
        yield f"    {line.request}"
    yield f"    {line.quota.console(line.region)}"


def quota_json(
    lines: Sequence[QuotaReportLine], region_quotas: Sequence[RegionQuotas], target: str, now: datetime
) -> dict[str, Any]:
    """Return the documented output of `quota --json`; null means unknown."""
    return {
        "target": target,
        "simulated": is_simulated(target),
        "quotas": [_line_json(line, now) for line in lines],
        "unread": [{"region": line.region, "reason": reason} for line in region_quotas for reason in line.trouble],
    }


def _line_json(line: QuotaReportLine, now: datetime) -> dict[str, Any]:
    headroom = line.room
    read_at = headroom.read_at if headroom else None
    return {
        "region": line.region,
        "market": line.market,
        "quota_code": line.quota.code or None,
        "quota_name": line.quota.name,
        "limit_vcpus": headroom.limit_vcpus if headroom else None,
        "used_vcpus": headroom.used_vcpus if headroom else None,
        "free_vcpus": headroom.free_vcpus if headroom else None,
        "instance_type": line.kind.name if line.kind else None,
        "node_vcpus": line.kind.vcpus if line.kind else None,
        "nodes_free": line.nodes_free,
        "nodes_wanted": line.nodes if line.kind else None,
        "needed_vcpus": line.needed_vcpus,
        "enough": line.enough,
        "request_command": line.request or None,
        "console_url": line.quota.console(line.region),
        "read_at": utc_text(read_at) if read_at else None,
        "age_s": int((now - read_at).total_seconds()) if read_at else None,
    }


def quota(  # noqa: PLR0917
    gpu: Gpu = "",
    instance_type: Type = "",
    nodes: Annotated[int, typer.Option("--nodes", parser=integer_parser(1, 1000), help="Number of nodes needed.")] = 1,
    regions: Regions = None,
    all_regions: Annotated[
        bool, typer.Option("--all-regions", help="Query every region enabled for the account.")
    ] = False,
    market: Annotated[
        Literal["on-demand", "spot"] | None, typer.Option("--market", help="Market to show. Default: both.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Show the last known quotas; make no cloud calls.")
    ] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Show how many nodes the account's quotas allow.

    Shows the limit, usage and headroom in vCPUs, and how to request an increase. Quotas apply per region, separately
    to on-demand and spot instances. If a quota cannot be read, it is shown as unknown and the command exits 8.
    """
    context = command_context(json=json, target=on)
    instance_types = report_subjects(context.catalog, gpu=gpu, instance_type=instance_type)
    target = context.settings.target
    region_names = None if all_regions else regions or [context.settings.region]
    headroom = QuotaHeadroom(Home(context.settings.home), context.clock)
    if not offline and (region_names is None or len(region_names) > 1):
        context.screen.remark(
            f"querying {target} in {'every region' if region_names is None else f'{len(region_names)} regions'}"
        )
    region_quotas = (
        headroom.cached(target, region_names)
        if offline
        else headroom.asked(context.backend(target).quotas(), region_names, anew=True)
    )
    rows = quota_report_lines(region_quotas, instance_types, (market,) if market else MARKETS, nodes)
    now = context.clock.now()
    if json:
        context.screen.document(quota_json(rows, region_quotas, target, now))
    else:
        context.screen.lines(quota_lines(rows, region_quotas, target, now, context.screen.width))
    if any(quotas.trouble for quotas in region_quotas):
        raise typer.Exit(CloudError.exit_code)
