"""`cloudgpu quota`: show the account's quotas and how to raise them."""

from typing import Annotated, Literal

import typer

from cloudgpu.app.planning.quota_report import MARKETS, quota_report_lines, report_subjects
from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, On, integer_parser
from cloudgpu.cli.render.quota import quota_json, quota_lines
from cloudgpu.errors import CloudError
from cloudgpu.paths import Home

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
